//! `magray-bench retrieval`: how well documents are found, by judgements: BM25, vectors, both, both and a reranker.
//! Measures quality, not speed, and tunes nothing: all constants are those of every search.

mod judged;

use std::{path::PathBuf, thread};

use clap::Args;
use magray_engine::engine::{Engine, EngineError, ModelSource};
use magray_index::text::{Analyzer, Bm25, Rrf, Scope, WordIndex, fuse_rrf};
use serde::Serialize;

use crate::{
    engine_start::{Measured, start},
    failure::Failure,
    flags::ModelFlags,
    terminal::{self, Console, aligned},
};
use judged::Judged;

const EXAMPLES: &str = "\
Examples:
  magray-bench retrieval npl --model all-MiniLM-L6-v2         folders of judged documents and of a model
  magray-bench retrieval npl --model all-MiniLM-L6-v2 --reranker ms-marco-MiniLM-L6-v2
  magray-bench retrieval npl --only-words                     BM25 alone; needs no model

The folder has docs.tsv and queries.tsv (id, tab, text) and qrels.tsv (query, document, grade).";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetrievalArgs {
    /// Folder with docs.tsv, queries.tsv and qrels.tsv
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    compute: ModelFlags,
    /// Folder of a model that scores pairs: the fused lists are put in its order
    #[arg(long, value_name = "FOLDER", conflicts_with = "only_words")]
    reranker: Option<PathBuf>,
    /// BM25 alone
    #[arg(long)]
    only_words: bool,
    /// Documents of each list that are fused, and that are reranked
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(10..=1000))]
    depth: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The names are those of `--json`; quality is nDCG@10.
#[derive(Debug, Default, Serialize)]
struct Report {
    documents: usize,
    queries: usize,
    bm25: f64,
    dense: Option<f64>,
    hybrid: Option<f64>,
    reranked: Option<f64>,
}

/// Documents of a request: what the queue of an engine takes at once.
const BATCH: usize = 256;

/// For each query: documents and scores, the best first.
type Rankings = Vec<Vec<(u32, f32)>>;

pub(crate) fn run(args: &RetrievalArgs, console: Console) -> Result<(), Failure> {
    let judged = Judged::read(&args.folder)?;
    let depth = usize::from(args.depth);
    let words = by_words(&judged, depth);
    let mut report = Report {
        documents: judged.documents.len(),
        queries: judged.queries.len(),
        bm25: quality(&judged, &words),
        ..Report::default()
    };
    if !args.only_words {
        let flags = &args.compute;
        let mut models = vec![(flags.model.clone(), flags.source()?)];
        if let Some(folder) = &args.reranker {
            models.push((folder.display().to_string(), ModelSource::Folder(folder.clone())));
        }
        let engine = start(&Measured::new(models, flags.options()?), console)?;
        let found = with_models(args, &judged, &words, &engine, &mut report, console);
        engine.shut_down();
        found.map_err(|error| Failure::Broken(error.to_string()))?;
    }
    if args.json { terminal::print_json(&report) } else { terminal::print(&table(&report)) }
}

fn with_models(
    args: &RetrievalArgs,
    judged: &Judged,
    words: &Rankings,
    engine: &Engine,
    report: &mut Report,
    console: Console,
) -> Result<(), EngineError> {
    let depth = usize::from(args.depth);
    let dense = by_vectors(judged, depth, engine, console)?;
    let fuse =
        |(words, dense): (&Vec<_>, &Vec<_>)| fuse_rrf(&[words.clone(), dense.clone()], &Rrf::new(Rrf::TEXT_K), depth);
    let fused: Rankings = words.iter().zip(&dense).map(fuse).collect();
    report.dense = Some(quality(judged, &dense));
    report.hybrid = Some(quality(judged, &fused));
    if args.reranker.is_some() {
        report.reranked = Some(quality(judged, &reranked(judged, fused, engine)?));
    }
    Ok(())
}

fn quality(judged: &Judged, rankings: &Rankings) -> f64 {
    let documents = |ranking: &Vec<(u32, f32)>| ranking.iter().map(|(document, _)| *document).collect::<Vec<_>>();
    let rankings: Vec<_> = rankings.iter().map(documents).collect();
    judged.ndcg(rankings.iter().map(Vec::as_slice))
}

fn by_words(judged: &Judged, limit: usize) -> Rankings {
    let mut index = WordIndex::new(Analyzer::default());
    for (slot, text) in (0..).zip(&judged.documents) {
        index.insert(slot, [text.as_str()]);
    }
    let scope = Scope { limit, ..Scope::default() };
    let search =
        |query: &String| index.search(query, Bm25::default(), &scope).iter().map(|hit| (hit.slot, hit.score)).collect();
    judged.queries.iter().map(search).collect()
}

/// By the cosine of every document's vector.
fn by_vectors(judged: &Judged, limit: usize, engine: &Engine, console: Console) -> Result<Rankings, EngineError> {
    console.note(format_args!("embedding {} documents", judged.documents.len()));
    let (documents, dimensions) = vectors(engine, &judged.documents)?;
    let (queries, _) = vectors(engine, &judged.queries)?;
    let rank = |query: &[f32]| {
        let dot = |row: &[f32]| row.iter().zip(query).map(|(a, b)| a * b).sum::<f32>();
        let mut scores: Vec<(u32, f32)> = (0..).zip(documents.chunks_exact(dimensions).map(dot)).collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        scores.truncate(limit);
        scores
    };
    Ok(queries.chunks_exact(dimensions).map(rank).collect())
}

/// One row a text, of length 1, and how many values a row has.
fn vectors(engine: &Engine, texts: &[String]) -> Result<(Vec<f32>, usize), EngineError> {
    let threads = thread::available_parallelism().map_or(1, Into::into);
    let (mut rows, mut dimensions) = (Vec::new(), 1);
    for batch in texts.chunks(BATCH) {
        let answer = engine.process(engine.read_by(threads, 0, batch, None)?)?;
        dimensions = answer.dimensions;
        for row in answer.rows() {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            rows.extend(row.iter().map(|value| value / length));
        }
    }
    Ok((rows, dimensions))
}

fn reranked(judged: &Judged, mut rankings: Rankings, engine: &Engine) -> Result<Rankings, EngineError> {
    for (query, ranking) in judged.queries.iter().zip(&mut rankings) {
        let texts: Vec<&str> =
            ranking.iter().map(|(document, _)| judged.documents[*document as usize].as_str()).collect();
        if texts.is_empty() {
            continue;
        }
        let asked = engine.read_ranking(1, query, &texts, None)?;
        let scores = asked.by.scores(&engine.process(asked.work)?, true);
        for ((_, score), new) in ranking.iter_mut().zip(scores) {
            *score = new;
        }
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    Ok(rankings)
}

fn table(report: &Report) -> String {
    let mut rows = vec![vec!["search".to_owned(), "nDCG@10".to_owned()]];
    let found = [
        ("BM25", Some(report.bm25)),
        ("dense", report.dense),
        ("hybrid (RRF)", report.hybrid),
        ("hybrid, reranked", report.reranked),
    ];
    for (name, quality) in found {
        rows.extend(quality.map(|quality| vec![name.to_owned(), format!("{quality:.4}")]));
    }
    format!("{} documents, {} queries\n{}", report.documents, report.queries, aligned(&rows))
}
