//! `magray mcp`: turns flags and settings into a server of the model context protocol on stdin and stdout.
//! Prints nothing on stdout: what stands there is the protocol's.

use clap::Args;

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
    Ok(server::run_stdio(args.served.start(Vec::new(), context)?)?)
}
