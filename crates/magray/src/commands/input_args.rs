//! Flags of the commands that read texts: files, their form, and what becomes of bad lines.
//! Opens the texts; what they are for is the command's matter.

use std::{ffi::OsString, io::IsTerminal, path::PathBuf};

use clap::Args;

use crate::{
    exit::Failure,
    input::{Form, OnError, Rules, Texts},
};

#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// Read texts from this file, one a line; may be given several times: -f a.txt -f b.txt
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The input is JSON lines
    #[arg(long)]
    jsonl: bool,
    /// Field of a JSON line that holds the text, such as body; the input is JSON lines then [default: text]
    #[arg(long, value_name = "FIELD")]
    text_field: Option<String>,
    /// What becomes of a line that is no text: stop, or skip to name, count and leave it out [default: stop]
    #[arg(long, value_name = "ACTION", hide_possible_values = true)]
    on_error: Option<OnError>,
}

impl InputArgs {
    pub(crate) fn is_jsonl(&self) -> bool {
        self.jsonl || self.text_field.is_some()
    }

    pub(crate) fn on_error(&self) -> OnError {
        self.on_error.unwrap_or_default()
    }

    /// The texts of the files, of the command's arguments, or of standard input; `missing` is said where there are none.
    pub(crate) fn open(
        &self,
        arguments: &[OsString],
        text_bytes_max: usize,
        missing: &'static str,
    ) -> Result<Texts, Failure> {
        let rules = Rules {
            form: if self.is_jsonl() { Form::JsonLines } else { Form::Plain },
            text_field: self.text_field.clone().unwrap_or_else(|| "text".to_owned()),
            text_bytes_max,
            on_error: self.on_error(),
        };
        match (self.files.as_slice(), arguments) {
            ([], [one]) if one == "-" => Ok(Texts::from_stdin(rules)),
            ([], []) if !std::io::stdin().is_terminal() => Ok(Texts::from_stdin(rules)),
            ([], []) => Err(Failure::Usage(missing.to_owned())),
            ([], _) => Ok(Texts::from_arguments(arguments.to_vec(), rules)),
            (files, _) => Ok(Texts::from_files(files, rules)?),
        }
    }
}
