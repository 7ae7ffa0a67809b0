//! Many texts, or pairs, as rows: read in windows while those before are computed.
//! Holds two windows at most beside the texts and the rows themselves.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use magray_engine::engine::{Engine, EngineError, Output, PendingAnswer, Work};
use pyo3::pybacked::PyBackedStr;

use crate::failure::Failure;
use crate::pending::Table;

/// The engine of a Python object has one model.
pub(crate) const MODEL: usize = 0;
/// A window: what is read while another is computed.
const WINDOW_TEXTS: usize = 2048;
const WINDOW_BYTES: usize = 8 << 20;

/// What is computed.
pub(crate) enum Input {
    Texts(Vec<PyBackedStr>),
    Pairs(Vec<(PyBackedStr, PyBackedStr)>),
}

/// How it is computed.
pub(crate) struct Request {
    pub(crate) input: Input,
    /// The model's prompt of this name before each text.
    pub(crate) prompt: Option<String>,
    pub(crate) output: Output,
    /// Texts that are handed to the queue together.
    pub(crate) portion: usize,
    /// Numbers of a row that are kept.
    pub(crate) columns_max: Option<usize>,
    /// Whether rows are scaled to length 1 after that.
    pub(crate) is_scaled: bool,
    pub(crate) done: Arc<AtomicUsize>,
}

impl Input {
    fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    fn bytes(&self, at: usize) -> usize {
        match self {
            Self::Texts(texts) => texts[at].len(),
            Self::Pairs(pairs) => pairs[at].0.len() + pairs[at].1.len(),
        }
    }

    fn bytes_of(&self, range: Range<usize>) -> usize {
        range.map(|at| self.bytes(at)).sum()
    }

    /// The window that begins here.
    fn window(&self, start: usize) -> Range<usize> {
        let (mut end, mut bytes) = (start, 0);
        while end < self.len() && end - start < WINDOW_TEXTS && (end == start || bytes < WINDOW_BYTES) {
            bytes += self.bytes(end);
            end += 1;
        }
        start..end
    }
}

impl Request {
    fn read(&self, engine: &Engine, threads: usize, range: Range<usize>) -> Result<Work, EngineError> {
        let work = match &self.input {
            Input::Texts(texts) => engine.read_by(threads, MODEL, &texts[range], self.prompt.as_deref())?,
            Input::Pairs(pairs) => engine.read_pairs(MODEL, &pairs[range])?,
        };
        let skip = if self.output == Output::Tokens { 0 } else { work.skip };
        Ok(Work { output: self.output, skip, ..work })
    }

    /// Appends rows, cut and scaled as wanted.
    fn append(&self, rows: &mut Vec<f32>, answer: Vec<f32>, width: usize, columns: usize) {
        if columns == width && !self.is_scaled {
            match rows.is_empty() && rows.capacity() < answer.len() {
                true => *rows = answer,
                false => rows.extend_from_slice(&answer),
            }
            return;
        }
        for row in answer.chunks_exact(width.max(1)) {
            let row = &row[..columns];
            let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            let by = if self.is_scaled && length > 0.0 { length.recip() as f32 } else { 1.0 };
            rows.extend(row.iter().map(|value| value * by));
        }
    }
}

/// Portions of a window that were handed in, in their order.
type Asked = Vec<(usize, PendingAnswer)>;

/// Computes all of it. Dropped before its end, what waits is cancelled.
pub(crate) async fn encode(engine: Engine, request: Arc<Request>) -> Result<Table, Failure> {
    let threads = engine.status().cpu.threads;
    let (total, mut next) = (request.input.len(), 0);
    let mut under_way: VecDeque<Asked> = VecDeque::new();
    let mut table = Table { values: Vec::new(), columns: 0, rows_of_texts: Vec::new() };
    while next < total || !under_way.is_empty() {
        if next < total {
            let window = request.input.window(next);
            next = window.end;
            let work = read(&engine, &request, threads, window).await?;
            if request.output == Output::Tokens {
                table.rows_of_texts.extend(work.texts.iter().map(|text| text.ids.len()));
            }
            under_way.push_back(ask(&engine, work, request.portion));
            // The next window is read while this one is computed.
            if under_way.len() < 2 && next < total {
                continue;
            }
        }
        for (texts, answer) in under_way.pop_front().unwrap_or_default() {
            let answer = answer.await?;
            let columns = request.columns_max.unwrap_or(usize::MAX).min(answer.dimensions);
            if table.values.is_empty() && total > texts && request.output != Output::Tokens {
                table.values.reserve_exact(total * columns);
            }
            table.columns = columns;
            request.append(&mut table.values, answer.values, answer.dimensions, columns);
            request.done.fetch_add(texts, Ordering::Relaxed);
        }
    }
    Ok(table)
}

/// Reads a window: a short one here, a long one on the engine's own threads.
async fn read(
    engine: &Engine,
    request: &Arc<Request>,
    threads: usize,
    window: Range<usize>,
) -> Result<Work, EngineError> {
    let bytes = request.input.bytes_of(window.clone());
    if bytes <= Engine::INLINE_BYTES_MAX {
        return request.read(engine, 1, window);
    }
    let (own, request) = (engine.clone(), Arc::clone(request));
    engine.background(bytes, move || request.read(&own, threads, window)).await?
}

fn ask(engine: &Engine, mut work: Work, portion: usize) -> Asked {
    let mut rest = std::mem::take(&mut work.texts).into_iter();
    let mut asked = Vec::new();
    loop {
        let texts: Vec<_> = rest.by_ref().take(portion.max(1)).collect();
        if texts.is_empty() {
            return asked;
        }
        asked.push((texts.len(), engine.ask(Work { texts, ..work.clone() })));
    }
}
