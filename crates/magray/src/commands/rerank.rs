//! `magray rerank QUERY`: documents in the order in which they answer a query.
//! Holds as many documents as it prints, and a window of those that it reads.

use std::ffi::OsString;

use clap::Args;
use magray_engine::engine::RankingWork;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Context;
use crate::{
    commands::{compute_args::ComputeArgs, input_args::InputArgs, server_args::ServerArgs},
    config::Config,
    exit::Failure,
    input::{Skipped, Text},
    output::{self, Destination},
    remote::{self, Remote},
    session::{Notices, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray rerank \"Which animal says meow?\" \"a car\" \"a kitten\"
  magray rerank \"Which animal says meow?\" -f documents.txt --top 3
  magray rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 \"meow\" -f documents.jsonl --text-field body --json
  cat documents.txt | magray rerank --server http://127.0.0.1:7860 \"meow\"

A line a document, the best first: its score and its text. A model that scores pairs gives scores between 0 and 1; for a \
model that embeds they are cosines. --json prints objects with index, score, id (if given) and text. Each line of a file is \
a document, as in `magray embed`.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RerankArgs {
    /// What the documents are to answer
    query: String,
    /// Documents; without any, and without -f, they are read from a pipe
    #[arg(value_name = "DOCUMENT", conflicts_with = "files")]
    documents: Vec<OsString>,
    #[command(flatten)]
    input: InputArgs,
    /// Print this many of the best only, such as 10 [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Print a classifier's own numbers, not brought between 0 and 1
    #[arg(long)]
    raw_scores: bool,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object a document
    #[arg(long)]
    json: bool,
}

struct Scored {
    score: f32,
    index: u64,
    text: Text,
}

pub(crate) fn run(args: &RerankArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    let missing = "no documents: give them after the query, or -f FILE";
    let mut texts = args.input.open(&args.documents, config.embed().max_text_bytes, missing)?;
    let mut window = texts.next_window()?;
    if window.is_empty() {
        return Err(texts.nothing().into());
    }
    let mut scorer = Scorer::open(args, &config, texts.bytes_total(), context)?;
    let (mut best, mut index) = (Vec::new(), 0);
    while !window.is_empty() {
        tell_skipped(&texts.take_skipped(), context);
        let scores = scorer.scores(&window)?;
        for (text, score) in window.into_iter().zip(scores) {
            best.push(Scored { score, index, text });
            index += 1;
        }
        // Equal ones stay in the order of the input.
        best.sort_by(|a, b| b.score.total_cmp(&a.score));
        best.truncate(args.top.map_or(usize::MAX, |top| top as usize));
        window = texts.next_window()?;
    }
    tell_skipped(&texts.take_skipped(), context);
    print(&best, args.json)?;
    scorer.leave();
    Ok(())
}

fn tell_skipped(skipped: &Skipped, context: &Context) {
    for error in &skipped.first {
        context.console.warn(format_args!("skipped: {error}"));
    }
    if skipped.lines > skipped.first.len() as u64 {
        context.console.warn(format_args!("{} bad lines were skipped", skipped.lines));
    }
}

/// What scores documents against the query.
struct Scorer<'a> {
    args: &'a RerankArgs,
    context: &'a Context,
    by: By,
}

enum By {
    Here { session: Box<Session>, notices: Notices, prompt: Option<String> },
    Server(Remote),
}

impl<'a> Scorer<'a> {
    fn open(args: &'a RerankArgs, config: &Config, bytes: Option<u64>, context: &'a Context) -> Result<Self, Failure> {
        let by = match args.server.remote(config) {
            Some(remote) => By::Server(remote),
            None => By::Here {
                session: Box::new(Session::open(config, bytes, &context.console)?),
                notices: Notices::default(),
                prompt: config.embed().prompt,
            },
        };
        Ok(Self { args, context, by })
    }

    fn scores(&mut self, texts: &[Text]) -> Result<Vec<f32>, Failure> {
        let Self { args, context, by } = self;
        match by {
            By::Server(remote) => {
                let scores = remote::portions(texts).map(|some| server_scores(remote, args, some, context));
                Ok(scores.collect::<Result<Vec<_>, _>>()?.concat())
            }
            By::Here { session, notices, prompt } => {
                let RankingWork { work, by } =
                    session.engine().read_ranking(0, &args.query, texts, prompt.as_deref())?;
                let cut = work.texts.iter().filter(|text| text.truncated).count();
                tell_cut(cut as u64, context);
                let answer = session.compute(work)?;
                notices.tell(&answer, session, &context.console);
                Ok(by.scores(&answer, args.raw_scores))
            }
        }
    }

    fn leave(self) {
        if let By::Here { session, .. } = self.by {
            session.leave();
        }
    }
}

fn tell_cut(texts: u64, context: &Context) {
    if texts > 0 {
        context
            .console
            .warn(format_args!("{texts} texts were longer than the tokens that the model reads and were cut"));
    }
}

fn server_scores(remote: &Remote, args: &RerankArgs, texts: &[Text], context: &Context) -> Result<Vec<f32>, Failure> {
    #[derive(Deserialize)]
    struct Rank {
        index: usize,
        score: f32,
    }
    let some: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    let mut body = json!({ "query": args.query, "texts": some, "raw_scores": args.raw_scores });
    if let Some(model) = remote.model() {
        body["model"] = model.into();
    }
    let reply = remote.post("/rerank", &body)?;
    tell_cut(reply.truncated, context);
    let ranks: Vec<Rank> = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
    let mut scores = vec![None; texts.len()];
    for rank in ranks {
        if let Some(score) = scores.get_mut(rank.index) {
            *score = Some(rank.score);
        }
    }
    let all: Option<Vec<f32>> = scores.into_iter().collect();
    Ok(all.ok_or_else(|| remote.unexpected("a document has no score"))?)
}

#[derive(Serialize)]
struct Line<'a> {
    index: u64,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a serde_json::Value>,
    text: &'a str,
}

fn print(best: &[Scored], as_json: bool) -> Result<(), Failure> {
    let mut out = Destination::open(None)?;
    let is_terminal = out.is_terminal();
    for Scored { score, index, text } in best {
        let line = match as_json {
            true => {
                let line = Line { index: *index, score: *score, id: text.id.as_ref(), text: &text.text };
                serde_json::to_string(&line).unwrap_or_else(|error| unreachable!("plain fields: {error}"))
            }
            // Control characters of a text could steer a terminal.
            false if is_terminal => format!("{score:.4}  {}", output::safe(&text.text)),
            false => format!("{score:.4}  {}", text.text),
        };
        out.checked(|out| writeln!(out, "{line}"))?;
    }
    Ok(out.finish()?)
}
