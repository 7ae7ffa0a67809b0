//! `magray index`: collections of documents: `add`, `ls`, `rm`, `export`, `import`.
//! Searches nothing: `magray search` does.

mod documents;
mod files;
mod parquet;
mod pipeline;
mod place;
mod transfer;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

pub(crate) use self::place::{Known, Place};
use self::{documents::Documents, parquet::ColumnArgs};
use super::Context;
use crate::{
    commands::{
        compute_args::{ComputeArgs, flag},
        server_args::ServerArgs,
    },
    config::FlagValue,
    exit::Failure,
    output::{self, aligned},
    qdrant::texts,
};

const EXAMPLES: &str = "\
Examples:
  magray index add notes docs/ README.md           files: text, Markdown, HTML, PDF, code
  magray index add notes -f documents.jsonl        a line a document: {\"text\": \"...\", \"id\": 7, \"author\": \"Ann\"}
  magray index ls
  magray search notes \"how do I rotate the keys?\"
  magray index export notes --output notes.jsonl   points with their vectors, a line each
  magray index export notes --output notes.npy     vectors as a NumPy array, and the rest in notes.jsonl
  magray index export notes --output notes.parquet a table: id, text, payload, vector
  magray index import copy notes.parquet
  magray index import posts posts.parquet --id-column key --text-column body --vector-column embedding
  magray index rm copy
  magray index add notes -f documents.jsonl --server http://127.0.0.1:7860

Collections are in the folder of the setting search.folder, which one process at a time has open: while a server runs on it, \
--server lets that server do it. A document with an id that is there already replaces it; one without an id is known by its \
text.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IndexArgs {
    #[command(subcommand)]
    action: IndexAction,
}

#[derive(Debug, Subcommand)]
enum IndexAction {
    /// Embed documents and put them into a collection, which is made if it is not there
    Add(AddArgs),
    /// List the collections
    Ls {
        /// Print one JSON object a collection
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Delete a collection and all of its documents
    Rm {
        /// Its name as `magray index ls` shows it
        collection: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Write the points of a collection
    Export {
        /// Its name as `magray index ls` shows it
        collection: String,
        /// Write to this file, .jsonl, .npy or .parquet [default: JSON lines on standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Put points that were exported into a collection, which is made if it is not there
    Import {
        /// The collection that they go into
        collection: String,
        /// What `magray index export` wrote: .jsonl, .parquet, or .npy with the .jsonl beside it; or a .parquet of others
        file: PathBuf,
        #[command(flatten)]
        columns: ColumnArgs,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The collection that they go into
    collection: String,
    /// Files and folders: text, Markdown, HTML, PDF, code; those that have not changed since are passed over
    #[arg(value_name = "PATH", required_unless_present = "files", conflicts_with = "files")]
    paths: Vec<PathBuf>,
    /// Read documents from this file of JSON lines: objects with "text", and if wanted an "id" and other fields
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Field that holds the text [default: text]
    #[arg(long, value_name = "FIELD")]
    text_field: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where the collections are, and what computes for them.
#[derive(Debug, Default, Args)]
pub(crate) struct PlaceArgs {
    /// Folder of the collections [default: the setting search.folder]
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    collections: Option<String>,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    #[command(flatten)]
    server: ServerArgs,
}

impl PlaceArgs {
    /// In this folder, or in that of the settings.
    pub(crate) fn in_folder(collections: Option<String>) -> Self {
        Self { collections, ..Self::default() }
    }

    pub(crate) fn flags(&self) -> Vec<FlagValue> {
        let mut flags = self.compute.flags();
        flags.extend(flag("search.folder", self.collections.as_ref()));
        flags
    }

    /// Refuses to mix the vectors of two models in one collection.
    pub(crate) fn check_model(&self, collection: &str, known: &Known) -> Result<(), Failure> {
        match (&self.compute.model, &known.model) {
            (Some(named), Some(own)) if named != own => Err(Failure::Usage(format!(
                "'{collection}' was made with the model '{own}': leave --model out, or use another collection for '{named}'"
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn open<'a>(&'a self, context: &'a Context) -> Result<Place<'a>, Failure> {
        let config = context.settle(&self.flags())?;
        Place::open(&self.server, &self.compute, &config, context)
    }
}

pub(crate) fn run(args: &IndexArgs, context: &Context) -> Result<(), Failure> {
    match &args.action {
        IndexAction::Add(args) => add(args, context),
        IndexAction::Ls { json, place } => list(&place.open(context)?, *json, context),
        IndexAction::Rm { collection, place } => {
            place.open(context)?.delete(collection)?;
            context.console.note(format_args!("deleted {collection}"));
            Ok(())
        }
        IndexAction::Export { collection, output, place } => {
            transfer::export(&place.open(context)?, collection, output.as_deref(), context)
        }
        IndexAction::Import { collection, file, columns, place } => {
            transfer::import(place.open(context)?, collection, (file, columns), context)
        }
    }
}

fn add(args: &AddArgs, context: &Context) -> Result<(), Failure> {
    let text_field = args.text_field.as_deref().unwrap_or(texts::TEXT_FIELD);
    // Input is tried before the model is loaded, or even pulled, in vain.
    let mut documents = Documents::open(&args.files, text_field)?;
    let files = files::list(&args.paths, context)?;
    let mut place = args.place.open(context)?;
    let known = place.find(&args.collection)?;
    known.as_ref().map_or(Ok(()), |known| args.place.check_model(&args.collection, known))?;
    let model = match known {
        Some(Known { model: Some(model), .. }) => model,
        Some(Known { model: None, .. }) => place.model()?.name,
        None => {
            let model = place.model()?;
            let settings = texts::settings(&model.name, model.dimensions, text_field);
            place.create(&args.collection, settings)?;
            model.name
        }
    };
    if !args.paths.is_empty() {
        let counts = files::add(&mut place, &args.collection, &files, (&model, text_field), context)?;
        place.finish()?;
        context.console.note(format_args!(
            "{} files in {} parts are in {}; {} had not changed, {} were left out",
            counts.files, counts.parts, args.collection, counts.unchanged, counts.refused
        ));
        return Ok(());
    }
    let (bar, done) = documents.bar(&context.console);
    let mut count = 0;
    while let Some(points) = documents.next_points(&model)? {
        count += points.len();
        place.upsert(&args.collection, points)?;
        done.store(count as u64, std::sync::atomic::Ordering::Relaxed);
        bar.set_position(documents.bytes_read());
    }
    place.finish()?;
    bar.finish_and_clear();
    context.console.note(format_args!("{count} documents are in {}", args.collection));
    Ok(())
}

fn list(place: &Place<'_>, as_json: bool, context: &Context) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for name in place.names()? {
        // One that was deleted meanwhile is not there.
        rows.extend(place.find(&name)?.map(|known| (name, known)));
    }
    if rows.is_empty() {
        context.console.note("no collections: `magray index add` makes one");
    }
    let text = match as_json {
        true => {
            let line = |(name, known): &(String, Known)| {
                let line =
                    json!({"name": name, "points": known.points, "model": known.model, "text_field": known.text_field});
                format!("{line}\n")
            };
            rows.iter().map(line).collect()
        }
        false => {
            let cells = |(name, known): &(String, Known)| {
                let model = known.model.clone().unwrap_or_else(|| "-".to_owned());
                vec![output::safe(name), format!("{} points", known.points), output::safe(&model)]
            };
            aligned(&rows.iter().map(cells).collect::<Vec<_>>())
        }
    };
    Ok(output::print(&text)?)
}
