//! Texts as lines of JSON, each answered by a line as it is computed: for more of them than one request may have.
//! A few batches are under way at once; a client that does not take its answers is not read from.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::Body as AnyBody,
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Frame};
use magray_engine::engine::{Answer, Output};
use serde::Deserialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    admission::HeldBytes,
    app::App,
    body::Body,
    codings::Coding,
    connections::Connection,
    errors::{Kind, Problem},
    held_answer::held_bytes,
    inputs::Input,
    line_reader::{LineBatch, LineReader},
    request_record::{Asker, RequestRecord},
    requests::openai::EncodingFormat,
    reservation,
    scaling::Scaling,
    scope::RequestScope,
    service::{Computed, Reading, Submitted},
    writing::Json,
};

/// The texts of a request: all in one body, or line by line.
pub(crate) enum TextsBody {
    Whole(Body),
    Lines(Box<Lines>),
}

/// A request whose texts come line by line.
pub(crate) struct Lines {
    body: AnyBody,
    options: LineOptions,
    scope: RequestScope,
}

/// What a request in lines has beside its texts, in its query.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LineOptions {
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<usize>,
    prompt_name: Option<String>,
    truncate: Option<bool>,
    normalize: Option<bool>,
}

pub(super) const LINES: &str = "application/x-ndjson";
/// Batches that are computed while another is written.
const BATCHES_AHEAD: usize = 4;
/// Between two tries to put a batch into a full queue.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);

impl FromRequest<App> for TextsBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).map_or(b"".as_slice(), |kind| kind.as_bytes());
        let is_lines = kind.get(..LINES.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(LINES.as_bytes()));
        let scope = request.extensions().get::<RequestScope>().filter(|_| is_lines).cloned();
        let Some(scope) = scope else { return Body::from_request(request, app).await.map(Self::Whole) };
        let (parts, body) = request.into_parts();
        if Coding::of(&parts.headers)?.is_some() {
            return Err(Problem::new(Kind::Invalid, "lines are read as they come: send them without content-encoding"));
        }
        let query = parts.uri.query().unwrap_or_default();
        let wrong = |error| Problem::new(Kind::Invalid, format!("the query does not fit: {error}"));
        let options = serde_urlencoded::from_str(query).map_err(wrong)?;
        Ok(Self::Lines(Box::new(Lines { body, options, scope })))
    }
}

impl Lines {
    /// Turns each line into a vector. `normalize` holds where the request does not say.
    pub(crate) fn embed(self, app: App, normalize: Option<bool>) -> Result<Response, Problem> {
        let Self { body, options, scope } = self;
        let model = app.models().embedder(options.model.as_deref())?;
        app.models().get(model).check_dimensions(options.dimensions)?;
        let (scaling, output) = Scaling::new(&app, model, options.normalize.or(normalize), options.dimensions);
        let format = options.encoding_format.unwrap_or_default();
        let how = Arc::new(How { app, model, output, scaling, format, options });
        let (batches, computing) = channel(BATCHES_AHEAD);
        let (answers, taken) = channel(1);
        let (reading, record) = (LineReader::new(body, how.app.limits()), scope.record.clone());
        let own = Arc::clone(&how);
        tokio::spawn(async move { record.scope(read_batches(&own, reading, batches)).await });
        tokio::spawn(async move {
            let _active = scope.connection.begin_request();
            scope.record.scope(write_answers(&how, &scope.connection, computing, answers)).await;
        });
        Ok(([(header::CONTENT_TYPE, LINES)], answer_body(taken)).into_response())
    }
}

struct How {
    app: App,
    model: usize,
    output: Output,
    scaling: Scaling,
    format: EncodingFormat,
    options: LineOptions,
}

/// Work in the queue with what it holds, or why there is none.
type Begin = Result<(Submitted, Option<HeldBytes>), Problem>;

/// A batch that is computed.
struct Begun {
    batch: LineBatch,
    work: Begin,
    _held: HeldBytes,
}

/// Ends with the body, or when no answers are taken any more.
async fn read_batches(how: &How, mut reader: LineReader, batches: Sender<Begun>) {
    while let Some(batch) = reader.next().await {
        // What is read already is held whether there is room or not; the next batch waits for room in the queue.
        let held = how.app.admission().hold_anyway(batch.bytes as u64);
        let work = how.begin(batch.texts().collect()).await;
        if batches.send(Begun { batch, work, _held: held }).await.is_err() {
            return;
        }
    }
}

/// Ends with the batches, or when the client has left: one that does not take its answers in time is disconnected.
async fn write_answers(how: &How, connection: &Arc<Connection>, mut batches: Receiver<Begun>, answers: Sender<Bytes>) {
    while let Some(Begun { batch, work, _held }) = batches.recv().await {
        let bytes = how.answer(batch, work).await;
        let held = how.app.admission().hold_anyway(bytes.len() as u64);
        if answers.send(held_bytes(bytes, &how.app, connection, held)).await.is_err() {
            return;
        }
    }
}

impl LineBatch {
    fn texts(&self) -> impl Iterator<Item = String> {
        self.lines.iter().filter_map(|line| line.as_ref().ok().cloned())
    }
}

impl How {
    /// Puts texts into the queue, as soon as it has room for them.
    async fn begin(&self, texts: Vec<String>) -> Begin {
        // Its parts are not the same request again.
        let asker = Asker { mark: None, ..RequestRecord::current().asker() };
        let bytes = texts.iter().map(String::len).sum::<usize>();
        let until = Instant::now() + self.app.limits().answer_within;
        let texts = Arc::new(texts);
        loop {
            let own = Arc::clone(&texts);
            let (model, output) = (self.model, self.output);
            let (prompt, truncate) = (self.options.prompt_name.clone(), self.options.truncate);
            let begun = reservation::run(async {
                reservation::keep_queue(self.app.reserve_queue(bytes as u64, asker)?);
                let read = move |app: &App| {
                    let texts = own.iter().map(|text| text.as_str().into()).collect();
                    let how = Reading { model, param: "input", prompt: prompt.as_deref(), truncate };
                    app.read_input(Input::Texts { texts, is_single: false }, how)
                };
                let mut read = self.app.read(bytes, read).await?;
                read.work.output = output;
                self.app.submit(read)
            });
            match begun.await {
                (Err(problem), _) if problem.kind == Kind::Busy && Instant::now() < until => {
                    tokio::time::sleep(problem.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)).await;
                }
                (begun, held) => return Ok((begun?, held)),
            }
        }
    }

    /// The answers to a batch as lines. Where one of its texts may have spoilt it, each is computed by itself.
    async fn answer(&self, batch: LineBatch, work: Begin) -> Bytes {
        let computed = self.computed(&batch, work).await;
        let may_be_spoilt = |problem: &Problem| matches!(problem.kind, Kind::Invalid | Kind::TooLarge | Kind::Internal);
        if batch.lines.len() == 1 || !computed.as_ref().is_err_and(may_be_spoilt) {
            return self.written(batch, computed).await;
        }
        let mut all = Vec::new();
        for (at, line) in batch.lines.into_iter().enumerate() {
            let one = LineBatch { first: batch.first + at, lines: vec![line], bytes: 0 };
            let work = self.begin(one.texts().collect()).await;
            let computed = self.computed(&one, work).await;
            all.extend_from_slice(&self.written(one, computed).await);
        }
        all.into()
    }

    async fn written(&self, batch: LineBatch, computed: Result<(Computed, Option<HeldBytes>), Problem>) -> Bytes {
        match computed {
            Ok((computed, _held)) => self.write(batch, computed).await,
            Err(problem) => {
                let lines = batch.lines.into_iter().map(|line| line.err().unwrap_or_else(|| problem.clone()));
                write_wrong(batch.first, lines)
            }
        }
    }

    /// What came of a batch; where the queue was full after all, it is put there again.
    async fn computed(&self, batch: &LineBatch, mut work: Begin) -> Result<(Computed, Option<HeldBytes>), Problem> {
        let until = Instant::now() + self.app.limits().answer_within;
        loop {
            let (submitted, held) = work?;
            match submitted.answered(&self.app).await {
                Err(problem) if problem.kind == Kind::Busy && Instant::now() < until => {
                    tokio::time::sleep(problem.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)).await;
                    work = self.begin(batch.texts().collect()).await;
                }
                answered => return Ok((answered?, held)),
            }
        }
    }

    async fn write(&self, batch: LineBatch, computed: Computed) -> Bytes {
        let (scaling, format, LineBatch { first, lines, .. }) = (self.scaling, self.format, batch);
        let write = move |answer: &Answer| {
            let (mut json, mut rows) = (Json::for_numbers(answer.values.len()), answer.rows());
            for (at, line) in lines.iter().enumerate() {
                match line.as_ref().map(|_| rows.next()) {
                    Ok(Some(row)) => {
                        let row = scaling.apply(row);
                        json.raw(r#"{"index":"#).whole(first + at).raw(r#","embedding":"#);
                        match format {
                            EncodingFormat::Float => json.numbers(&row),
                            EncodingFormat::Base64 => json.base64(&row),
                        };
                        json.raw("}\n");
                    }
                    Ok(None) => unreachable!("each text has a row"),
                    Err(problem) => wrong(&mut json, first + at, problem),
                }
            }
            json
        };
        match computed.write(write).await {
            Ok((json, _)) => json.into_bytes(),
            Err(problem) => write_wrong(first, [problem].into_iter()),
        }
    }
}

fn write_wrong(first: usize, problems: impl Iterator<Item = Problem>) -> Bytes {
    let mut json = Json::default();
    for (at, problem) in problems.enumerate() {
        wrong(&mut json, first + at, &problem);
    }
    json.into_bytes()
}

fn wrong(json: &mut Json, index: usize, problem: &Problem) {
    json.raw(r#"{"index":"#).whole(index).raw(r#","error":{"message":"#).text(&problem.message);
    json.raw(r#","code":"#).text(problem.kind.code()).raw("}}\n");
}

/// An answer that comes line by line.
pub(crate) fn answer_body(lines: Receiver<Bytes>) -> AnyBody {
    AnyBody::new(UnsyncBoxBody::new(AnswerLines(lines)))
}

struct AnswerLines(Receiver<Bytes>);

impl HttpBody for AnswerLines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
