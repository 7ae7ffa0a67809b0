//! `magray version`: the version, and what it was built from and with.
//! Looks at nothing but itself.

use clap::Args;

use crate::{
    exit::Failure,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray version
  magray version --json";

const DETAILS: [(&str, &str); 5] = [
    ("version", env!("CARGO_PKG_VERSION")),
    ("commit", env!("BUILT_MAGRAY_COMMIT")),
    ("target", env!("BUILT_MAGRAY_TARGET")),
    ("profile", env!("BUILT_MAGRAY_PROFILE")),
    ("compiler", env!("BUILT_MAGRAY_RUSTC")),
];

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VersionArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &VersionArgs) -> Result<(), Failure> {
    let text = match args.json {
        true => {
            let fields = DETAILS.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
            format!("{}\n", serde_json::Value::Object(fields.collect()))
        }
        false => aligned(&DETAILS.map(|(name, value)| vec![name.to_owned(), value.to_owned()])),
    };
    Ok(output::print(&text)?)
}
