//! `magray evaluate TEXT`: critics judge a text side by side, here or at a server.
//! Exits with a code of its own where the text is rejected, so that scripts can ask.

mod cases;
mod local;
mod written;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Context;
use crate::{
    commands::{chat::question, compute_args::ComputeArgs, server_args::ServerArgs},
    critics::{Decision, PRECEDENTS, PRECEDENTS_MAX, Panel, Report},
    exit::Failure,
    output,
    remote::Remote,
};
use cases::Cases;

const EXAMPLES: &str = "\
Examples:
  magray evaluate \"All of them are lazy.\"
  magray evaluate -f letter.txt --critic fairness --critic safety
  git log -1 --format=%B | magray evaluate --json
  magray evaluate -f post.txt --collection cases --store
  magray evaluate -f post.txt --server http://127.0.0.1:7860

Without sections [critics.NAME] in the settings the critics ethics, fairness and safety judge, by the model of `magray chat`, which is \
pulled on first use. The exit code is 0 for a text that is accepted, 10 for one that is rejected, 11 where the critics could not decide.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvaluateArgs {
    /// The text [default: what stdin has]
    text: Option<String>,
    /// Evaluate the text of this file; - reads stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Ask this critic; may be given several times [default: all]
    #[arg(long = "critic", value_name = "NAME")]
    critics: Vec<String>,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Show critics the cases of this collection that are most like the text
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Folder of the collections [default: the setting search.folder]
    #[arg(long, value_name = "DIR", requires = "collection", conflicts_with = "server")]
    collections: Option<String>,
    /// Show this many cases [default: 3]
    #[arg(long, value_name = "N", requires = "collection", value_parser = clap::value_parser!(u8).range(0..=PRECEDENTS_MAX as i64))]
    precedents: Option<u8>,
    /// Store the text with what was decided as a case of the collection
    #[arg(long, requires = "collection")]
    store: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl EvaluateArgs {
    fn precedents(&self) -> usize {
        self.precedents.map_or(PRECEDENTS, usize::from)
    }
}

pub(crate) fn run(args: &EvaluateArgs, context: &Context) -> Result<(), Failure> {
    let text = question::read_from(args.file.as_deref(), args.text.as_deref(), "the text")?;
    let config = context.settle(&args.compute.flags())?;
    let report = match args.server.remote(&config) {
        Some(remote) => at_server(args, &remote, text)?,
        None => {
            let panel = Panel::of(&config)?;
            let critics = panel.choose(&args.critics).map_err(Failure::Usage)?;
            let cases = args.collection.as_deref().map(|name| Cases::new(name, args.collections.clone()));
            let found = match &cases {
                Some(cases) => cases.find(&text, args.precedents(), args.store, context)?,
                None => Vec::new(),
            };
            let mut report = local::judge(&panel, critics, (&text, &found), (args, context))?;
            if let (Some(cases), true) = (&cases, args.store && !report.aggregate.formed_over.is_empty()) {
                report.stored = Some(cases.store(&text, &report, context)?);
            }
            report
        }
    };
    let shown = match args.json {
        true => format!("{}\n", json!(report)),
        false => written::table(&report),
    };
    output::print(&shown)?;
    match report.aggregate.decision {
        Decision::Accepted => Ok(()),
        Decision::Rejected => Err(Failure::Rejected),
        Decision::Undecided => Err(Failure::Undecided),
    }
}

fn at_server(args: &EvaluateArgs, remote: &Remote, text: String) -> Result<Report, Failure> {
    let mut body = json!({ "text": text });
    if !args.critics.is_empty() {
        body["critics"] = json!(args.critics);
    }
    if let Some(model) = &args.compute.model {
        body["model"] = json!(model);
    }
    if let Some(collection) = &args.collection {
        body["collection"] = json!(collection);
        body["precedents"] = json!(args.precedents());
        body["store"] = json!(args.store);
    }
    let reply = remote.post("/v1/evaluate", &body)?;
    Ok(serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?)
}
