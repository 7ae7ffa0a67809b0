//! The flags that say what an answer has to be.
//! Checks nothing but what it reads: the engine refuses what cannot be followed.

use clap::Args;
use magray_engine::decoder::Constraint;

use crate::exit::Failure;

/// What the answer has to be.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// Write JSON of this schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|TEXT", conflicts_with = "ignore_end")]
    json_schema: Option<String>,
    /// Write a text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", conflicts_with = "ignore_end")]
    regex: Option<String>,
    /// Write one of these texts; given several times
    #[arg(long, value_name = "TEXT", conflicts_with = "ignore_end")]
    choice: Vec<String>,
}

/// Schemas in files are read up to this size.
const SCHEMA_BYTES_MAX: u64 = 1 << 20;

impl ConstraintArgs {
    pub(crate) fn constraint(&self) -> Result<Option<Constraint>, Failure> {
        Ok(match (&self.json_schema, &self.regex, &self.choice[..]) {
            (Some(schema), ..) => Some(Constraint::JsonSchema(read_schema(schema)?)),
            (None, Some(regex), _) => Some(Constraint::Regex(regex.clone())),
            (None, None, []) => None,
            (None, None, choices) => Some(Constraint::Choices(choices.to_vec())),
        })
    }
}

/// A schema as it stands, or what its file has.
pub(crate) fn read_schema(schema: &str) -> Result<String, Failure> {
    if schema.trim_start().starts_with(['{', '[']) || schema.trim() == "true" {
        return Ok(schema.to_owned());
    }
    let unreadable = |reason: &dyn std::fmt::Display| Failure::Usage(format!("cannot read {schema}: {reason}"));
    match std::fs::metadata(schema) {
        Ok(file) if file.len() > SCHEMA_BYTES_MAX => {
            Err(unreadable(&format_args!("it has more than {SCHEMA_BYTES_MAX} bytes")))
        }
        Ok(_) => std::fs::read_to_string(schema).map_err(|reason| unreadable(&reason)),
        Err(reason) => Err(unreadable(&reason)),
    }
}
