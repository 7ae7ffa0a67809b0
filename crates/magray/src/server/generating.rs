//! Generates for a request: jobs of an API become answers that are waited for, read, counted and logged.
//! Knows no API. A client that leaves drops what is here, and so ends its sequences.

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll},
    time::Instant,
};

use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::{
    app::App,
    connections::ActiveRequest,
    errors::{Kind, Problem},
    metrics::Generated,
    request_record::{Pass, ReadAt, RequestRecord},
    reservation,
    service::answer_headers,
    token_counts::TokenCounts,
    writing::Json,
};
use crate::generation::{
    ANSWERS_MAX, AnswerEnd, AnswerEvent, AnswersEvent, Job, JobError, JobInput, Prepared, SideBySide, Urgency,
    WholeAnswer,
};

/// Answers of which each has begun.
pub(crate) struct Generating {
    app: App,
    record: RequestRecord,
    model: usize,
    answers: SideBySide,
    /// What came before all had begun.
    early: VecDeque<AnswersEvent>,
    prompt_tokens: usize,
    left: usize,
    read: ReadAt,
    counts: TokenCounts,
    citations: Option<Value>,
    /// The connection is not idle while an answer streams.
    _active: Option<ActiveRequest>,
}

/// Jobs whose prompts were read.
pub(crate) struct ReadJobs {
    model: usize,
    jobs: Vec<Prepared>,
    read: ReadAt,
    /// Passages that are to be answered from, as JSON.
    citations: Option<Value>,
}

impl ReadJobs {
    /// To be computed on this device, in place of where the model's other work goes.
    pub(crate) fn on(self, device: Option<magray_engine::DeviceName>) -> Self {
        Self { jobs: self.jobs.into_iter().map(|job| job.on(device)).collect(), ..self }
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.jobs.iter().map(Prepared::prompt_tokens).sum()
    }

    /// With the passages that it is answered from.
    pub(crate) fn citing(self, citations: Value) -> Self {
        Self { citations: Some(citations), ..self }
    }
}

impl App {
    /// Reads the prompts of jobs for one model. Blocks as long as templates and tokenizer take.
    pub(crate) fn read_jobs(&self, jobs: Vec<Job>) -> Result<ReadJobs, Problem> {
        let started = Instant::now();
        let answers = jobs.iter().map(|job| u64::from(job.answers)).sum::<u64>();
        if answers > u64::from(ANSWERS_MAX) {
            let message = format!("{answers} answers were asked for; {ANSWERS_MAX} are given in one request");
            return Err(Problem::too_large("n", message));
        }
        let model = jobs.first().map_or(0, |job| job.model);
        let is_chat = jobs.iter().any(|job| matches!(job.input, JobInput::Chat(_)));
        let template = match is_chat {
            true => self.models().get(model).chat_template(self.engine(), model)?,
            false => None,
        };
        let jobs = jobs.into_iter().map(|job| job.prepare(self.engine(), template)).collect::<Result<Vec<_>, _>>()?;
        let tokens = jobs.iter().map(Prepared::prompt_tokens).sum();
        self.limits().check_tokens("messages", tokens)?;
        let read = ReadAt { at: Instant::now(), took: started.elapsed() };
        Ok(ReadJobs { model, jobs, read, citations: None })
    }

    /// Begins answers, and waits until each has begun: what is wrong until then is told in place of them.
    pub(crate) async fn generate(&self, read: ReadJobs) -> Result<Generating, Problem> {
        let ReadJobs { model, jobs, read, citations } = read;
        let record = RequestRecord::current();
        let asker = record.asker();
        let urgency = Urgency { caller: asker.caller, priority: asker.priority, deadline: None };
        let of_all = |tokens: fn(&Prepared) -> usize| jobs.iter().map(|job| tokens(job) * job.answers()).sum();
        let tokens: [usize; 2] = [of_all(Prepared::prompt_tokens), of_all(Prepared::new_tokens_max)];
        let prompt_tokens: usize = jobs.iter().map(Prepared::prompt_tokens).sum();
        if let Some(coming) = reservation::take_queue() {
            // A prompt is in the body once, however many answers are asked for.
            coming.submitted(prompt_tokens, tokens[1]);
        }
        let count: usize = jobs.iter().map(Prepared::answers).sum();
        if count > 1 {
            self.admission().check_jobs(self.engine(), asker, count as u32, tokens)?;
        }
        let account = record.account();
        if let Some(account) = &account {
            account.spend(prompt_tokens as u64)?;
        }
        let unspent = |problem: Problem| {
            if let Some(account) = &account {
                account.give_back(prompt_tokens as u64);
            }
            problem
        };
        let mut counts = TokenCounts::new(self.metrics().clone(), account.clone());
        let mut answers = Vec::new();
        for job in &jobs {
            answers.extend(job.begin(self.engine(), urgency).map_err(|error| unspent(JobError::from(error).into()))?);
        }
        counts.set_answers(count);
        let mut generating = Generating {
            app: self.clone(),
            record,
            model,
            answers: SideBySide::new(answers),
            early: VecDeque::new(),
            prompt_tokens,
            left: count,
            read,
            counts,
            citations,
            _active: None,
        };
        let late =
            || Problem::busy(Kind::Expired, "the answer did not begin in time", std::time::Duration::from_secs(1));
        let begun = tokio::time::timeout(self.limits().answer_within, generating.begin(count)).await;
        begun.map_err(|_| late()).flatten().map_err(unspent)?;
        Ok(generating)
    }
}

impl Generating {
    async fn begin(&mut self, count: usize) -> Result<(), Problem> {
        let (mut has_begun, mut begun) = (vec![false; count], 0);
        while begun < count {
            // Those that have begun wait for the others unread, in bounded room.
            let next = poll_fn(|context| self.poll_live(context, |answer| !has_begun[answer])).await;
            let Some((answer, event)) = next else { break };
            let event = event.map_err(JobError::from)?;
            begun += usize::from(!std::mem::replace(&mut has_begun[answer], true));
            self.early.push_back((answer, Ok(event)));
        }
        Ok(())
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    pub(crate) fn model(&self) -> usize {
        self.model
    }

    pub(crate) fn answers(&self) -> usize {
        self.counts.answers()
    }

    /// Passages that are answered from, for the field `magray_citations`.
    pub(crate) fn citations(&self) -> Option<&Value> {
        self.citations.as_ref()
    }

    pub(crate) fn begun(&self) -> Instant {
        self.counts.begun()
    }

    /// Keeps its connection until it is dropped.
    pub(super) fn keep(&mut self, active: ActiveRequest) {
        self._active = Some(active);
    }

    /// What comes next of any answer, counted; `None` when all are over.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, AnswerEvent), Problem>>> {
        let next = match self.early.pop_front() {
            Some(early) => Poll::Ready(Some(early)),
            None => self.poll_live(context, |_| true),
        };
        next.map(|next| {
            next.map(|(answer, event)| match event {
                Ok(event) => Ok((answer, event)),
                Err(error) => Err(JobError::from(error).into()),
            })
        })
    }

    /// Tells where the answers were computed, and how long that took.
    pub(crate) fn with_headers(&self, answers: &[WholeAnswer], json: Json) -> Response {
        let mut response = json.into_response();
        let last = answers.iter().filter_map(|answer| answer.end.as_ref()).next_back();
        if let Some(answer) = last.and_then(|end| end.answer.as_ref()) {
            answer_headers(response.headers_mut(), answer, self.read.took);
        }
        response
    }

    pub(crate) async fn next(&mut self) -> Option<Result<(usize, AnswerEvent), Problem>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// All answers, whole.
    pub(crate) async fn collect(&mut self) -> Result<Vec<WholeAnswer>, Problem> {
        let mut answers: Vec<WholeAnswer> = (0..self.answers()).map(|_| WholeAnswer::default()).collect();
        while let Some(event) = self.next().await {
            let (answer, event) = event?;
            answers[answer].add(event);
        }
        Ok(answers)
    }

    fn poll_live(
        &mut self,
        context: &mut Context<'_>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Poll<Option<AnswersEvent>> {
        let next = self.answers.poll_among(context, is_wanted);
        if let Poll::Ready(Some((answer, event))) = &next {
            match event {
                Ok(AnswerEvent::Token(token)) => self.counts.add(*answer, token.at),
                Ok(AnswerEvent::End(end)) => self.count_end(end),
                Err(_) => {}
            }
        }
        next
    }

    fn count_end(&mut self, end: &AnswerEnd) {
        self.left -= 1;
        self.counts.settle();
        let prompt_tokens = if self.left == 0 { self.prompt_tokens } else { 0 };
        let replays = end.answer.as_ref().map_or(0, |answer| answer.replays);
        let (tokens, cached_tokens, speculation) = (end.tokens, end.cached_tokens, end.speculation);
        let counted = Generated { prompt_tokens, cached_tokens, tokens, device: end.device(), replays, speculation };
        self.app.metrics().generated(self.model, counted);
        if let Some(answer) = &end.answer {
            self.record.add_pass(Pass::of(self.model, 1, answer, self.read));
        }
        let device = end.device().map(tracing::field::display);
        tracing::info!(
            target: "magray::access",
            parent: self.record.span(),
            model = self.app.models().get(self.model).name,
            prompt_tokens = self.prompt_tokens,
            tokens = end.tokens,
            finish = end.finish.code(),
            device,
            first_token_ms = end.times.first_token.map(|time| time.as_micros() as f64 / 1e3),
            replays = (replays > 0).then_some(replays),
            "generated"
        );
    }
}

impl From<JobError> for Problem {
    fn from(error: JobError) -> Self {
        let message = error.to_string();
        match error {
            JobError::Engine(error) => error.into(),
            JobError::NoText => Self::invalid("model", message),
            JobError::Answers(_) => Self::invalid("n", message),
            JobError::Stops(_) => Self::invalid("stop", message),
            JobError::NoTokens => Self::invalid("max_tokens", message),
            JobError::NoTemplate => Self::invalid("model", message),
            JobError::Template(_) => Self::invalid("messages", message),
            JobError::NoTools | JobError::NoSuchTool(_) => Self::invalid("tool_choice", message),
        }
    }
}
