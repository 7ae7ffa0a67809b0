//! `magray mcp`: turns flags and settings into a server of the model context protocol on stdin and stdout.
//! Prints nothing on stdout: what stands there is the protocol's.

use clap::Args;
use magray_engine::engine::{EngineModel, ModelSource};

use super::{Context, serve::ServedArgs};
use crate::{exit::Failure, server};

const EXAMPLES: &str = "\
Examples:
  magray mcp                                       the default model
  magray mcp --model all-MiniLM-L6-v2 --model ./my-reranker

An agent starts it by its configuration, such as:
  {\"mcpServers\": {\"magray\": {\"command\": \"magray\", \"args\": [\"mcp\"]}}}

The same tools are at /mcp of `magray serve`. It ends with its stdin.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    served: ServedArgs,
}

pub(crate) fn run(args: &McpArgs, context: &Context) -> Result<(), Failure> {
    let start = args.served.start(Vec::new(), context)?;
    let is_synthetic = |model: &&EngineModel| matches!(model.source, ModelSource::Synthetic(_));
    if let Some(model) = start.engine.models.iter().find(is_synthetic) {
        let message =
            format!("--model {}: a synthetic model reads no texts, and the tools take nothing else", model.name);
        return Err(Failure::Usage(message));
    }
    Ok(server::run_stdio(start)?)
}
