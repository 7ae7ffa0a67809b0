//! `magray similarity A B`: the cosine of two texts.
//! Compares nothing but the two.

use clap::Args;
use magray_engine::{Reason, vectors::cosine};

use super::Context;
use crate::{
    cli::{ComputeArgs, flag},
    exit::Failure,
    input::Texts,
    model::{self, FallbackNotice},
    output,
};

const EXAMPLES: &str = "\
Examples:
  magray similarity \"a cat sits\" \"a kitten is sitting\"
  magray similarity --json \"yes\" \"no\"

The cosine is 1 for the same direction, 0 for unrelated texts; it lies between -1 and 1.";

/// Flags of `magray similarity`.
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

/// Runs `magray similarity`.
pub(crate) fn run(args: &SimilarityArgs, context: &Context) -> Result<(), Failure> {
    let mut flags = args.compute.flags();
    flags.extend(flag("embed.prompt", args.prompt.as_ref()));
    let config = context.settle(&flags)?;
    let settings = config.embed();
    let pair = vec![args.a.clone().into(), args.b.clone().into()];
    let texts = Texts::from_arguments(pair, settings.max_text_bytes).next_window()?;
    let mut encoder = model::open(&config, &context.console)?;
    let embeddings = encoder.embed(&texts, settings.prompt.as_deref())?;
    FallbackNotice::default().tell(&embeddings, &context.console);
    for index in &embeddings.truncated {
        let name = if *index == 0 { "first" } else { "second" };
        let limit = encoder.max_tokens();
        context.console.warn(format_args!("the {name} text was cut to the {limit} tokens that the model reads"));
    }
    let mut rows = embeddings.rows();
    let cosine = match (rows.next(), rows.next()) {
        (Some(a), Some(b)) => cosine(a, b),
        _ => unreachable!("two texts have two vectors"),
    };
    let answer = match args.json {
        true => serde_json::json!({
            "cosine": cosine, "tokens": embeddings.tokens,
            "device": embeddings.device.to_string(), "precision": embeddings.precision.to_string(),
            "fallback": embeddings.fallback.as_ref().map(Reason::code),
        })
        .to_string(),
        false => format!("{cosine:.4}"),
    };
    Ok(output::print(&(answer + "\n"))?)
}
