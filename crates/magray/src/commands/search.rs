//! `magray search COLLECTION QUERY`: the documents of a collection that fit a query best.
//! Changes nothing.

use std::collections::BTreeMap;

use clap::Args;
use magray_engine::engine::RankingWork;
use magray_index::text::{Analyzer, SnippetLimits, snippet};
use serde_json::{Value, json};

use super::Context;
use crate::{
    commands::{
        compute_args::flag,
        index::{Place, PlaceArgs},
    },
    exit::Failure,
    output::{self, aligned},
    qdrant::texts::{TEXT_FIELD, TextSearch},
    remote::Remote,
    session::Session,
};

const EXAMPLES: &str = "\
Examples:
  magray search notes \"how do I rotate the keys?\"
  magray search notes \"key rotation\" --hybrid --limit 5
  magray search notes \"key rotation\" --hybrid --rerank
  magray search notes \"keys\" --filter '{\"must\": [{\"key\": \"author\", \"match\": {\"value\": \"Ann\"}}]}'
  magray search notes \"keys\" --json --server http://127.0.0.1:7860

A line a document, the best first: its score, its id, and the part of its text that says most about the query. --hybrid ranks \
by meaning and by words (BM25) and fuses both (RRF); --rerank puts the best into the order of a model that reads query and text \
together. Filters are Qdrant's.";

/// Scores pairs of a query and a text.
pub(crate) const RERANKER: &str = "cross-encoder/ms-marco-MiniLM-L6-v2";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SearchArgs {
    /// The collection to search
    collection: String,
    /// What is searched for
    query: String,
    /// Search by words too, and fuse both
    #[arg(long)]
    hybrid: bool,
    /// Put the best into the order of a model that reads query and text together
    #[arg(long)]
    rerank: bool,
    /// The model for --rerank [default: cross-encoder/ms-marco-MiniLM-L6-v2, or a server's own]
    #[arg(long, value_name = "MODEL", requires = "rerank")]
    reranker: Option<String>,
    /// Only documents that meet this filter of Qdrant's
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Print this many documents at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object a document
    #[arg(long)]
    json: bool,
}

/// A document that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) score: f64,
    pub(crate) id: Value,
    pub(crate) text: String,
    pub(crate) payload: Value,
}

/// What is searched for.
pub(crate) struct Retrieval<'a> {
    pub(crate) collection: &'a str,
    pub(crate) query: &'a str,
    /// By words too, and both fused.
    pub(crate) is_hybrid: bool,
    pub(crate) reranker: Reranker<'a>,
    pub(crate) filter: Option<Value>,
    pub(crate) limit: usize,
}

/// What puts the best into another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reranker<'a> {
    None,
    /// The usual one, or a server's own.
    Usual,
    Named(&'a str),
}

pub(crate) fn run(args: &SearchArgs, context: &Context) -> Result<(), Failure> {
    let filter = args.filter.as_deref().map(serde_json::from_str::<Value>).transpose();
    let filter = filter.map_err(|error| Failure::Usage(format!("--filter is no JSON: {error}")))?;
    let reranker = match (args.rerank, &args.reranker) {
        (false, _) => Reranker::None,
        (true, None) => Reranker::Usual,
        (true, Some(name)) => Reranker::Named(name),
    };
    let (collection, query, limit) = (&args.collection, &args.query, args.limit as usize);
    let retrieval = Retrieval { collection, query, is_hybrid: args.hybrid, reranker, filter, limit };
    print(&retrieve(retrieval, &args.place, context)?, args)
}

/// The documents that fit best, the best first.
pub(crate) fn retrieve(wanted: Retrieval<'_>, at: &PlaceArgs, context: &Context) -> Result<Vec<Found>, Failure> {
    let Retrieval { collection, query, is_hybrid, reranker, filter, limit } = wanted;
    let mut place = at.open(context)?;
    let known = place.find(collection)?;
    let known = known.ok_or_else(|| magray_index::Error::no_collection(collection))?;
    at.check_model(collection, &known)?;
    let text_field = known.text_field.clone().unwrap_or_else(|| TEXT_FIELD.to_owned());
    let is_reranked = reranker != Reranker::None;
    let model = known.model.as_deref();
    let search = TextSearch { query, model, text_field: &text_field, is_hybrid, is_reranked, limit, filter };
    let found = place.query(collection, &search.body())?;
    let mut found: Vec<Found> = found.into_iter().map(|point| Found::of(point, &text_field)).collect();
    if is_reranked && !found.is_empty() {
        let texts: Vec<&str> = found.iter().map(|one| one.text.as_str()).collect();
        let named = if let Reranker::Named(name) = reranker { Some(name) } else { None };
        let scores = match &place {
            Place::Server(remote) => server_scores(remote, named, query, &texts)?,
            Place::Here(_) => own_scores(named.unwrap_or(RERANKER), query, &texts, (at, context))?,
        };
        for (one, score) in found.iter_mut().zip(scores) {
            one.score = score.into();
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
    }
    found.truncate(limit);
    place.finish()?;
    Ok(found)
}

impl Found {
    fn of(mut point: Value, text_field: &str) -> Self {
        let payload = point["payload"].take();
        let text = payload[text_field].as_str().unwrap_or_default().to_owned();
        Self { score: point["score"].as_f64().unwrap_or(0.0), id: point["id"].take(), text, payload }
    }
}

fn own_scores(
    reranker: &str,
    query: &str,
    texts: &[&str],
    (at, context): (&PlaceArgs, &Context),
) -> Result<Vec<f32>, Failure> {
    let mut flags = at.flags();
    flags.retain(|flag| flag.key != "model.name");
    flags.extend(flag("model.name", Some(&reranker.to_owned())));
    let session = Session::open(&context.settle(&flags)?, None, &context.console)?;
    let RankingWork { work, by } = session.engine().read_ranking(0, query, texts, None)?;
    let scores = by.scores(&session.compute(work)?, false);
    session.leave();
    Ok(scores)
}

fn server_scores(remote: &Remote, reranker: Option<&str>, query: &str, texts: &[&str]) -> Result<Vec<f32>, Failure> {
    let mut body = json!({ "query": query, "texts": texts });
    if let Some(model) = reranker {
        body["model"] = model.into();
    }
    let reply = remote.post("/rerank", &body)?;
    let ranks: Vec<Value> = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
    let mut scores = vec![f32::NEG_INFINITY; texts.len()];
    for rank in ranks {
        let place = rank["index"].as_u64().and_then(|index| scores.get_mut(index as usize));
        if let (Some(place), Some(score)) = (place, rank["score"].as_f64()) {
            *place = score as f32;
        }
    }
    Ok(scores)
}

fn print(found: &[Found], args: &SearchArgs) -> Result<(), Failure> {
    const SNIPPET_CHARS: usize = 120;
    let analyzer = Analyzer::default();
    let terms: BTreeMap<String, f32> = analyzer.words(&args.query).map(|word| (word.term.to_string(), 1.0)).collect();
    let limits = SnippetLimits { chars: SNIPPET_CHARS, ..SnippetLimits::default() };
    let shown = |text: &str| snippet(text, &analyzer, &terms, limits);
    let text = match args.json {
        true => {
            let line = |one: &Found| {
                let snippet = shown(&one.text).marked("**", "**");
                let line = json!({"score": one.score, "id": one.id, "snippet": snippet, "payload": one.payload});
                format!("{line}\n")
            };
            found.iter().map(line).collect()
        }
        false => {
            let id = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let cells =
                |one: &Found| vec![format!("{:.4}", one.score), id(&one.id), output::safe(&shown(&one.text).text)];
            aligned(&found.iter().map(cells).collect::<Vec<_>>())
        }
    };
    Ok(output::print(&text)?)
}
