//! `magray-bench generate`: goes on with a text by a language model on the CPU, and says how fast prompt and new tokens were.
//! Takes the likeliest token each time; no engine, no queue, one sequence.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use magray_device::{DecoderDevice, DecoderOps, PAGE_TOKENS, StepBatch, cpu::Cpu};
use magray_engine::decoder::{Decoder, DecoderFiles};
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
    text: String,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// Threads; one a core by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object with the ids
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Generated {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    prompt_tokens_per_s: f64,
    new_tokens_per_s: f64,
}

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let unusable =
        |reason: &dyn std::fmt::Display| Failure::Usage(format!("cannot use '{}': {reason}", args.model.display()));
    let files = DecoderFiles::open(&args.model).map_err(|reason| unusable(&reason))?;
    let context = files.spec().context;
    let (tokenizer, vocabulary) = files.tokenizer(context).map_err(|reason| unusable(&reason))?;
    let encoded = tokenizer.encode(&args.text).map_err(|reason| unusable(&reason))?;
    let length = encoded.ids.len() + args.tokens as usize;
    if encoded.truncated || length > context || encoded.ids.is_empty() {
        return Err(unusable(&format!("text and new tokens must have 1 to {context} tokens, and have {length}")));
    }
    let ends = files.end_tokens().map_err(|reason| unusable(&reason))?;
    let threads = args.threads.map(usize::from);
    let cpu = Arc::new(Cpu::new(None, threads).map_err(|reason| Failure::Usage(reason.to_string()))?);
    let decoder = Decoder::load(&*cpu, &files, length).map_err(|reason| unusable(&reason))?;
    let (ids, [prompt, rest]) = greedy(&cpu, &decoder, &encoded.ids, args.tokens as usize, &ends);
    let generated = Generated {
        text: vocabulary.text(&ids),
        prompt_tokens_per_s: encoded.ids.len() as f64 / prompt.as_secs_f64(),
        new_tokens_per_s: ids.len().saturating_sub(1) as f64 / rest.as_secs_f64().max(f64::MIN_POSITIVE),
        prompt_ids: encoded.ids,
        ids,
    };
    if args.json {
        return terminal::print_json(&generated);
    }
    terminal::print(&format!(
        "{}\nprompt: {} tokens, {:.1}/s; new: {} tokens, {:.1}/s\n",
        generated.text,
        generated.prompt_ids.len(),
        generated.prompt_tokens_per_s,
        generated.ids.len(),
        generated.new_tokens_per_s
    ))
}

/// The likeliest next tokens until the one that ends an answer, and the times of the prompt and of the rest.
fn greedy(
    cpu: &Arc<Cpu>,
    decoder: &Decoder<Cpu>,
    prompt: &[u32],
    most: usize,
    ends: &[u32],
) -> (Vec<u32>, [Duration; 2]) {
    let pages: Vec<u32> = (0..decoder.context().div_ceil(PAGE_TOKENS) as u32).collect();
    let Ok(mut kept) = cpu.pages(decoder.kv_shape(), pages.len());
    let (mut ops, mut room) = (cpu.decoder(), decoder.room(cpu));
    let mut next = |ids: &[u32], start: usize| {
        let steps = StepBatch {
            ids,
            offsets: &[0, ids.len()],
            starts: &[start],
            pages: &pages,
            page_offsets: &[0, pages.len()],
            logit_rows: &[ids.len() - 1],
        };
        decoder.forward(&mut ops, &steps, &mut kept, &mut room);
        let Ok(logits) = ops.answer();
        let likeliest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        likeliest.map_or(0, |(id, _)| id as u32)
    };
    let started = Instant::now();
    let mut token = 0;
    for (part, ids) in prompt.chunks(PART_TOKENS).enumerate() {
        token = next(ids, part * PART_TOKENS);
    }
    let prompt_time = started.elapsed();
    let mut new = Vec::new();
    while !ends.contains(&token) {
        new.push(token);
        if new.len() == most {
            break;
        }
        token = next(&[token], prompt.len() + new.len() - 1);
    }
    (new, [prompt_time, started.elapsed() - prompt_time])
}
