//! `magray similarity A B`: the cosine of two texts.
//! Compares nothing but the two.

use clap::Args;
use magray_engine::{Reason, vectors::cosine};

use super::Context;
use crate::{
    commands::compute_args::{ComputeArgs, flag},
    exit::Failure,
    input::{Rules, Texts},
    output,
    session::{Notices, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray similarity \"a cat sits\" \"a kitten is sitting\"
  magray similarity --json \"yes\" \"no\"

The cosine is 1 for the same direction, 0 for unrelated texts; it lies between -1 and 1.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimilarityArgs {
    /// One text
    a: String,
    /// The other text
    b: String,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Prompt of the model to put before each text [default: the model's own, if any]
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SimilarityArgs, context: &Context) -> Result<(), Failure> {
    let mut flags = args.compute.flags();
    flags.extend(flag("embed.prompt", args.prompt.as_ref()));
    let config = context.settle(&flags)?;
    let settings = config.embed();
    let pair = vec![args.a.clone().into(), args.b.clone().into()];
    let texts = Texts::from_arguments(pair, Rules::plain(settings.max_text_bytes)).next_window()?;
    let bytes = texts.iter().map(|text| text.text.len() as u64).sum();
    let session = Session::open(&config, Some(bytes), &context.console)?;
    let work = session.read(&texts, settings.prompt.as_deref())?;
    for (_, name) in work.texts.iter().zip(["first", "second"]).filter(|(text, _)| text.truncated) {
        let limit = session.spec().max_tokens;
        context.console.warn(format_args!("the {name} text was cut to the {limit} tokens that the model reads"));
    }
    let answer = session.compute(work)?;
    Notices::default().tell(&answer, &session, &context.console);
    let mut rows = answer.rows();
    let cosine = match (rows.next(), rows.next()) {
        (Some(a), Some(b)) => cosine(a, b),
        _ => unreachable!("two texts have two vectors"),
    };
    let line = match args.json {
        true => serde_json::json!({
            "cosine": cosine, "tokens": answer.tokens,
            "device": answer.device.to_string(), "precision": answer.precision.to_string(),
            "fallback": answer.fallback.as_ref().map(Reason::code),
        })
        .to_string(),
        false => format!("{cosine:.4}"),
    };
    session.leave();
    Ok(output::print(&(line + "\n"))?)
}
