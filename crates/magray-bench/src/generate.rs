//! `magray-bench generate`: goes on with a text or with made-up tokens by a language model on the CPU, and says how fast prompt and new tokens were.
//! Takes the likeliest token each time; no engine, no queue, one sequence.

mod forced;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use magray_core::CpuPath;
use magray_device::{
    DecoderDevice, DecoderOps, KvFormat, PAGE_TOKENS, StepBatch,
    cpu::{Cpu, CpuDecoderOps, KvPages},
    most_likely,
};
use magray_engine::decoder::{Decoder, DecoderFiles, DecoderRoom};
use serde::Serialize;

use crate::{failure::Failure, terminal};

/// Tokens of a prompt that are computed at once.
const PART_TOKENS: usize = 512;

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// A GGUF file of Llama, Qwen 2 or 3, Gemma 2 or 3, or Phi-3
    #[arg(value_name = "FILE")]
    model: PathBuf,
    /// The text to go on with
    #[arg(required_unless_present_any = ["prompt_tokens", "forced"])]
    text: Option<String>,
    /// This many made-up tokens to go on with, instead of a text
    #[arg(long, value_name = "N", conflicts_with = "text", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: Option<u32>,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// Tokens that stand before the new ones while these are timed; those of the prompt by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    context: Option<u32>,
    /// Also compute made-up tokens once before anything is timed
    #[arg(long)]
    warm: bool,
    /// Threads; one a core by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The instructions to use: portable, avx2, avx512 or amx; the best by default
    #[arg(long, value_name = "PATH")]
    path: Option<CpuPath>,
    /// Bits of a number of keys and values: 16 or 8
    #[arg(long, value_name = "BITS", value_parser = kv_format)]
    kv_bits: Option<KvFormat>,
    /// Read lists of token ids, one JSON list a line, from this file, and write the logits of their tokens to the second
    #[arg(long, value_names = ["IDS", "LOGITS"], num_args = 2, conflicts_with_all = ["text", "prompt_tokens"])]
    forced: Option<Vec<PathBuf>>,
    /// Compute the tokens of forced lists one by one from this token on, and those before it at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    one_by_one_from: u32,
    /// Print one JSON object with the ids
    #[arg(long)]
    json: bool,
}

impl GenerateArgs {
    fn kv_format(&self) -> KvFormat {
        self.kv_bits.unwrap_or_default()
    }
}

fn kv_format(bits: &str) -> Result<KvFormat, String> {
    match bits {
        "16" => Ok(KvFormat::Halves),
        "8" => Ok(KvFormat::Bytes),
        _ => Err("keys and values have 16 or 8 bits".to_owned()),
    }
}

#[derive(Debug, Serialize)]
struct Generated {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    context: usize,
    load_s: f64,
    prompt_tokens_per_s: f64,
    new_tokens_per_s: f64,
    resident_mb: u64,
}

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let unusable =
        |reason: &dyn std::fmt::Display| Failure::Usage(format!("cannot use '{}': {reason}", args.model.display()));
    let files = DecoderFiles::open(&args.model).map_err(|reason| unusable(&reason))?;
    let threads = args.threads.map(usize::from);
    let cpu = Arc::new(Cpu::new(args.path, threads).map_err(|reason| Failure::Usage(reason.to_string()))?);
    if let Some([ids, logits]) = args.forced.as_deref() {
        return forced::run((&cpu, args.kv_format()), &files, (ids, logits), args.one_by_one_from as usize);
    }
    let most = files.spec().context;
    let vocabulary = match &args.text {
        None => None,
        Some(_) => files.tokenizer(most).map_err(|reason| unusable(&reason))?,
    };
    let prompt_ids = match (&args.text, &vocabulary) {
        (Some(text), Some((tokenizer, _))) => {
            let encoded = tokenizer.encode(text).map_err(|reason| unusable(&reason))?;
            if encoded.truncated {
                return Err(unusable(&format!("the text has more than {most} tokens")));
            }
            encoded.ids
        }
        _ => made_up(args.prompt_tokens.unwrap_or(1) as usize, files.spec().vocab),
    };
    let context = args.context.map_or(prompt_ids.len(), |context| context as usize);
    let length = prompt_ids.len().max(context) + args.tokens as usize;
    if length > most || prompt_ids.is_empty() || context < prompt_ids.len() {
        return Err(unusable(&format!(
            "a prompt of {} tokens, a context of {context} and {} new tokens are more than the {most} it was made for, or the \
             context is shorter than the prompt",
            prompt_ids.len(),
            args.tokens
        )));
    }
    let ends = match &args.text {
        Some(_) => files.end_tokens().map_err(|reason| unusable(&reason))?,
        None => Vec::new(),
    };
    let started = Instant::now();
    let decoder = Decoder::load(&*cpu, &files, length).map_err(|reason| unusable(&reason))?;
    let load_s = started.elapsed().as_secs_f64();
    let mut running = Running::new((&cpu, args.kv_format()), &decoder);
    if args.warm {
        running.prompt(&made_up(prompt_ids.len().min(64), decoder.spec().vocab), 0);
    }
    let (ids, [prompt, rest]) = running.greedy(&prompt_ids, context, args.tokens as usize, &ends);
    let generated = Generated {
        text: vocabulary.map_or_else(String::new, |(_, known)| known.text(&ids)),
        context,
        load_s,
        prompt_tokens_per_s: prompt_ids.len() as f64 / prompt.as_secs_f64(),
        new_tokens_per_s: ids.len().saturating_sub(1) as f64 / rest.as_secs_f64().max(f64::MIN_POSITIVE),
        resident_mb: resident_mb(),
        prompt_ids,
        ids,
    };
    if args.json {
        return terminal::print_json(&generated);
    }
    terminal::print(&format!(
        "{}\nprompt: {} tokens, {:.1}/s; new: {} tokens behind {context}, {:.1}/s; loaded in {:.2} s, {} MB resident\n",
        generated.text,
        generated.prompt_ids.len(),
        generated.prompt_tokens_per_s,
        generated.ids.len(),
        generated.new_tokens_per_s,
        generated.load_s,
        generated.resident_mb
    ))
}

/// Tokens that follow from their places alone.
fn made_up(count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % vocab as u32).collect()
}

/// The memory of this process that is resident, in MB; 0 where the system does not say.
fn resident_mb() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096 / 1_000_000
}

/// One sequence on the CPU.
struct Running<'a> {
    decoder: &'a Decoder<Cpu>,
    ops: CpuDecoderOps,
    kept: KvPages,
    room: DecoderRoom<Cpu>,
    pages: Vec<u32>,
}

impl<'a> Running<'a> {
    fn new((cpu, format): (&Arc<Cpu>, KvFormat), decoder: &'a Decoder<Cpu>) -> Self {
        let pages: Vec<u32> = (0..decoder.context().div_ceil(PAGE_TOKENS) as u32).collect();
        let Ok(kept) = cpu.pages_in(format, decoder.kv_shape(), pages.len());
        Self { decoder, ops: cpu.decoder(), kept, room: decoder.room(cpu), pages }
    }

    /// The logits of the wanted tokens.
    fn step(&mut self, ids: &[u32], start: usize, wanted: &[usize]) -> &[f32] {
        let steps = StepBatch {
            ids,
            offsets: &[0, ids.len()],
            starts: &[start],
            pages: &self.pages,
            page_offsets: &[0, self.pages.len()],
            logit_rows: wanted,
        };
        self.decoder.forward(&mut self.ops, &steps, &mut self.kept, &mut self.room);
        let Ok(logits) = self.ops.answer();
        logits
    }

    /// The likeliest token behind these.
    fn next(&mut self, ids: &[u32], start: usize) -> u32 {
        let logits = self.step(ids, start, &[ids.len() - 1]);
        most_likely(logits)
    }

    fn prompt(&mut self, ids: &[u32], start: usize) -> u32 {
        let mut token = 0;
        for (part, ids) in ids.chunks(PART_TOKENS).enumerate() {
            token = self.next(ids, start + part * PART_TOKENS);
        }
        token
    }

    /// The likeliest next tokens until the one that ends an answer, and the times of the prompt and of the rest. Where the
    /// context is longer than the prompt, made-up tokens stand between them.
    fn greedy(&mut self, prompt: &[u32], context: usize, most: usize, ends: &[u32]) -> (Vec<u32>, [Duration; 2]) {
        let started = Instant::now();
        let mut token = self.prompt(prompt, 0);
        let prompt_time = started.elapsed();
        if context > prompt.len() {
            let between = made_up(context - prompt.len(), self.decoder.spec().vocab);
            token = self.prompt(&between, prompt.len());
        }
        let started = Instant::now();
        let mut new = Vec::new();
        while !ends.contains(&token) {
            new.push(token);
            if new.len() == most {
                break;
            }
            token = self.next(&[token], context + new.len() - 1);
        }
        (new, [prompt_time, started.elapsed()])
    }
}
