//! Takes a request through the engine: texts are tokenized beside the runtime, queued, computed, and recorded.
//! Knows no API: those turn requests into texts and answers into JSON.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue};
use magray_engine::engine::{Answer, Asked, Engine, EngineError, Output, Work};
use tokio::sync::Semaphore;

use super::{
    app::App,
    errors::{Kind, Problem},
    inputs::Input,
    request_record::{Asker, Pass, ReadAt, RequestRecord},
    reservation,
    token_account::TokenAccount,
    writing::{Json, write_budget},
};

/// Answers up to this size are written by the thread that has them: it takes some tenths of a millisecond.
const INLINE_NUMBERS_MAX: usize = 32 << 10;

const NUMBER_BYTES: usize = 12;

#[derive(Debug)]
pub(crate) struct ReadWork {
    pub(crate) work: Work,
    pub(crate) truncated: usize,
    pub(crate) took: Duration,
    /// The field that the texts came in.
    param: &'static str,
}

/// Work in the queue; dropped, it is withdrawn.
pub(crate) struct Submitted {
    asking: Asked,
    record: RequestRecord,
    account: Option<Arc<TokenAccount>>,
    model: usize,
    texts: usize,
    tokens: usize,
    truncated: usize,
    read: ReadAt,
    param: &'static str,
}

#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) answer: Answer,
    truncated: usize,
    reading: Duration,
    writers: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) model: usize,
    pub(crate) param: &'static str,
    pub(crate) prompt: Option<&'a str>,
    /// Whether too long ones are cut; `None`: as the settings say.
    pub(crate) truncate: Option<bool>,
}

impl App {
    /// Reads a request of this many bytes: a short one here, a long one on the engine's read threads, a few at a time. One
    /// whose client has left is not read.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        bytes: usize,
        read: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= Engine::INLINE_BYTES_MAX {
            return read(self);
        }
        let (app, span) = (self.clone(), tracing::Span::current());
        self.engine().background(bytes, move || span.in_scope(|| read(&app))).await?
    }

    /// Texts or token ids as work to embed. Blocks as long as the tokenizer takes.
    pub(crate) fn read_input(&self, input: Input<'_>, how: Reading<'_>) -> Result<ReadWork, Problem> {
        let started = Instant::now();
        let limits = self.limits();
        let work = match input {
            Input::Texts { texts, .. } => {
                limits.check_texts(how.param, texts.iter().map(|text| text.as_ref()))?;
                self.engine().read(how.model, &texts, how.prompt)
            }
            Input::Ids { texts, .. } => {
                limits.check_count(how.param, texts.len())?;
                if how.prompt.is_some() {
                    let message = "token ids are taken as they are: a prompt goes before texts alone";
                    return Err(Problem::invalid("prompt_name", message));
                }
                if let Some(at) = texts.iter().position(Vec::is_empty) {
                    return Err(Problem::invalid(how.param, format!("text {at} has no token ids")));
                }
                self.engine().read_ids(how.model, texts)
            }
        };
        let work = work.map_err(|error| wrong_texts(error, how.param))?;
        self.check_work(work, how, started)
    }

    pub(crate) fn check_work(&self, work: Work, how: Reading<'_>, started: Instant) -> Result<ReadWork, Problem> {
        let limits = self.limits();
        let truncated = work.texts.iter().filter(|text| text.truncated).count();
        if truncated > 0 && !how.truncate.unwrap_or(limits.is_cutting) {
            let (first, most) =
                (work.texts.iter().position(|text| text.truncated), self.models().get(how.model).max_tokens);
            let message = format!("text {} has more than the {most} tokens that the model reads", first.unwrap_or(0));
            return Err(Problem::too_large(how.param, message));
        }
        limits.check_tokens(how.param, work.tokens())?;
        Ok(ReadWork { work, truncated, took: started.elapsed(), param: how.param })
    }

    /// Queues work and waits for its result. A caller that stops waiting withdraws the work.
    pub(crate) async fn compute(&self, read: ReadWork) -> Result<Computed, Problem> {
        self.submit(read)?.answered(self).await
    }

    /// Queues work. What it holds belongs to the request that this task answers.
    pub(crate) fn submit(&self, read: ReadWork) -> Result<Submitted, Problem> {
        let ReadWork { mut work, truncated, took: reading, param } = read;
        let (model, texts) = (work.model, work.texts.len());
        let read = ReadAt { at: Instant::now(), took: reading };
        let record = RequestRecord::current();
        Asker { caller: work.caller, priority: work.priority, .. } = record.asker();
        work.deadline.get_or_insert(self.limits().answer_within);
        // An answer that there is no room for is not computed.
        // What is embedded for an answer that is to be generated leaves that answer its room.
        let coming = if record.asker().generates { None } else { reservation::take_queue() };
        let bytes = (self.numbers(&work) * NUMBER_BYTES) as u64;
        reservation::keep_answer(
            coming.as_ref().map_or_else(|| self.admission().hold(bytes), |own| own.hold_answer(bytes))?,
        );
        let tokens = work.tokens();
        let account = record.account();
        if let Some(account) = &account {
            account.spend(tokens as u64)?;
        }
        let asking = self.text_cache().ask(self.engine(), work);
        if let Some(coming) = coming {
            coming.submitted(tokens, 0);
        }
        Ok(Submitted { asking, record, account, model, texts, tokens, truncated, read, param })
    }

    fn numbers(&self, work: &Work) -> usize {
        match work.output {
            Output::Texts | Output::Unscaled => work.texts.len() * self.models().get(work.model).outputs,
            Output::Tokens => work.tokens() * self.engine().spec(work.model).map_or(0, |spec| spec.shape.hidden),
        }
    }
}

impl Submitted {
    pub(crate) async fn answered(self, app: &App) -> Result<Computed, Problem> {
        let Self { asking, record, account, model, texts, tokens, truncated, read, param } = self;
        let answer = match (asking.await, account) {
            (Ok(answer), _) => answer,
            (Err(error), account) => {
                if let Some(account) = account {
                    account.give_back(tokens as u64);
                }
                return Err(wrong_texts(error, param));
            }
        };
        app.metrics().computed(model, texts, &answer, read.took);
        record.add_pass(Pass::of(model, texts, &answer, read));
        if answer.replays > 0 {
            tracing::warn!(
                target: "magray::server",
                device = %answer.device,
                replays = answer.replays,
                "computed after a device failed under it"
            );
        }
        Ok(Computed { answer, truncated, reading: read.took, writers: Arc::clone(app.writers()) })
    }
}

/// What the engine finds invalid is wrong with the texts, unless it names something else.
fn wrong_texts(error: EngineError, param: &'static str) -> Problem {
    match Problem::from(error) {
        problem if problem.kind == Kind::Invalid => problem.about(param),
        problem => problem,
    }
}

impl Computed {
    pub(crate) fn truncated(&self) -> usize {
        self.truncated
    }

    /// A short answer is written here; a long one, and one of many, on a blocking thread, so that the runtime's threads go on
    /// serving connections.
    pub(crate) async fn written(
        self,
        write: impl FnOnce(&Answer) -> Json + Send + 'static,
    ) -> Result<Response, Problem> {
        let (json, computed) = self.write(write).await?;
        Ok(computed.with_headers(json.into_response()))
    }

    /// As [`Computed::written`], without the head of an answer.
    pub(crate) async fn write(
        self,
        write: impl FnOnce(&Answer) -> Json + Send + 'static,
    ) -> Result<(Json, Self), Problem> {
        let is_long = self.answer.values.len() > INLINE_NUMBERS_MAX;
        if !is_long && write_budget::has_time() {
            let json = write_budget::timed(|| write(&self.answer));
            return Ok((json, self));
        }
        // Short ones do not wait for the long ones of others. The semaphore is never closed.
        let _permit = if is_long { Arc::clone(&self.writers).acquire_owned().await.ok() } else { None };
        let writing = tokio::task::spawn_blocking(move || (write(&self.answer), self));
        let failed = |_| Problem::new(Kind::Internal, "writing the answer failed: report it as a defect");
        writing.await.map_err(failed)
    }

    pub(crate) fn with_headers(&self, mut response: Response) -> Response {
        self.add_headers(response.headers_mut());
        response
    }

    fn add_headers(&self, headers: &mut HeaderMap) {
        const TRUNCATED: HeaderName = HeaderName::from_static("x-magray-truncated");
        answer_headers(headers, &self.answer, self.reading);
        if self.truncated > 0 {
            headers.insert(TRUNCATED, self.truncated.into());
        }
    }
}

/// Tells where an answer was computed, and how long that took.
pub(super) fn answer_headers(headers: &mut HeaderMap, answer: &Answer, reading: Duration) {
    const DEVICE: HeaderName = HeaderName::from_static("x-magray-device");
    const FALLBACK: HeaderName = HeaderName::from_static("x-magray-fallback");
    const REPLAYS: HeaderName = HeaderName::from_static("x-magray-replays");
    const TIMING: HeaderName = HeaderName::from_static("server-timing");
    let mut tell = |name: HeaderName, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    tell(DEVICE, &answer.device.to_string());
    if answer.replays > 0 {
        tell(REPLAYS, &answer.replays.to_string());
    }
    if let Some(reason) = &answer.fallback {
        tell(FALLBACK, reason.code());
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (read, queued, computed) = (ms(reading), ms(answer.queued), ms(answer.computed));
    tell(TIMING, &format!("read;dur={read:.3}, queue;dur={queued:.3}, compute;dur={computed:.3}"));
}
