//! Reads texts as a model does: its prompt, its tokenizer, its limits.
//! Computes nothing.

use crate::decoder::{ChatTemplates, DecoderFiles};
use crate::encoder::{EmbedError, LoadError};
use crate::spec::{EmbedSpec, ModelSpec, Task};
use crate::tokenize::{Encoded, TokenizeError, Tokenizer, Vocabulary};

/// What a model says of itself, and its tokenizer.
pub(crate) struct Reader {
    pub(crate) spec: ModelSpec,
    /// None for a synthetic model, which takes only token ids.
    tokenizer: Option<Tokenizer>,
    /// The bytes of tokens, where the model generates them.
    pub(crate) vocabulary: Option<Vocabulary>,
    /// Its chat templates, where it has any.
    pub(crate) chat: Option<ChatTemplates>,
}

/// Texts as token ids, and how many leading tokens of each are not pooled.
pub(crate) struct Reading {
    pub(crate) texts: Vec<Encoded>,
    pub(crate) skip: usize,
}

impl Reader {
    /// A model with its tokenizer.
    pub(crate) fn open(spec: ModelSpec) -> Result<Self, LoadError> {
        let Some(generate) = spec.generates() else {
            return Ok(Self { tokenizer: Some(Tokenizer::for_model(&spec)?), vocabulary: None, chat: None, spec });
        };
        let files = DecoderFiles::of(&generate.source)?;
        let (tokenizer, vocabulary) = files.tokenizer(spec.max_tokens)?.unzip();
        let chat = Some(files.chat_templates()?).filter(ChatTemplates::has_any);
        Ok(Self { spec, tokenizer, vocabulary, chat })
    }

    /// A model that takes only token ids.
    pub(crate) fn without_tokenizer(spec: ModelSpec) -> Self {
        Self { spec, tokenizer: None, vocabulary: None, chat: None }
    }

    /// Texts to embed, with the named prompt of the model before each; without a name, with its default prompt if any.
    pub(crate) fn texts<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        prompt: Option<&str>,
        threads: usize,
    ) -> Result<Reading, EmbedError> {
        let task = self.must_embed()?;
        let tokenizer = self.tokenizer()?;
        let Some(prompt) = self.find_prompt(prompt)? else {
            return Ok(Reading { texts: tokenizer.encode_batch(texts, threads)?, skip: 0 });
        };
        let skip = if task.include_prompt { 0 } else { tokenizer.prompt_tokens(prompt)? };
        let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{}", text.as_ref())).collect();
        Ok(Reading { texts: tokenizer.encode_batch(&texts, threads)?, skip })
    }

    /// Texts to score.
    pub(crate) fn scored<T: AsRef<str> + Sync>(&self, texts: &[T], threads: usize) -> Result<Reading, EmbedError> {
        self.must_classify()?;
        Ok(Reading { texts: self.tokenizer()?.encode_batch(texts, threads)?, skip: 0 })
    }

    /// Pairs of texts to score.
    pub(crate) fn pairs<A, B>(&self, pairs: &[(A, B)], threads: usize) -> Result<Reading, EmbedError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        self.must_classify()?;
        Ok(Reading { texts: self.tokenizer()?.encode_pairs(pairs, threads)?, skip: 0 })
    }

    /// All numbers of leading tokens that may have to be left out of the pooling, each once.
    pub(crate) fn skips(&self) -> Result<Vec<usize>, LoadError> {
        let mut skips = vec![0];
        if let (Task::Embed(task), Some(tokenizer)) = (&self.spec.task, &self.tokenizer)
            && !task.include_prompt
        {
            for prompt in self.spec.prompts.values().filter(|prompt| !prompt.is_empty()) {
                skips.push(tokenizer.prompt_tokens(prompt)?);
            }
        }
        skips.sort_unstable();
        skips.dedup();
        Ok(skips)
    }

    /// Refuses token ids that the model cannot read.
    pub(crate) fn check<'a>(&self, texts: impl Iterator<Item = &'a [u32]>) -> Result<(), EmbedError> {
        let (vocab, max_tokens) = (self.spec.shape.vocab, self.spec.max_tokens);
        for (text, ids) in texts.enumerate() {
            if ids.is_empty() || ids.len() > max_tokens {
                return Err(EmbedError::TokenCount { text, tokens: ids.len(), max_tokens });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
                return Err(EmbedError::UnknownId { text, id, vocab });
            }
        }
        Ok(())
    }

    /// A text to go on from, read in one of the tokenizer's ways. It must fit as a whole.
    pub(crate) fn prompt(
        &self,
        text: &str,
        read: impl Fn(&Tokenizer, &str) -> Result<Encoded, TokenizeError>,
    ) -> Result<Vec<u32>, EmbedError> {
        let encoded = read(self.tokenizer()?, text)?;
        match encoded.truncated {
            true => Err(EmbedError::LongPrompt { max_tokens: self.spec.max_tokens }),
            false => Ok(encoded.ids),
        }
    }

    /// `None` for a synthetic model.
    pub(crate) fn tokenizer_if_any(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, EmbedError> {
        self.tokenizer.as_ref().ok_or(EmbedError::NoTokenizer)
    }

    /// How texts are embedded; a model that does something else is refused.
    pub(crate) fn must_embed(&self) -> Result<&EmbedSpec, EmbedError> {
        match &self.spec.task {
            Task::Embed(task) => Ok(task),
            Task::Classify(_) => Err(EmbedError::WrongTask { does: "scores texts", wanted: "embeds them" }),
            Task::Generate(_) => Err(EmbedError::WrongTask { does: "generates text", wanted: "embeds texts" }),
        }
    }

    fn must_classify(&self) -> Result<(), EmbedError> {
        match self.spec.task {
            Task::Classify(_) => Ok(()),
            Task::Embed(_) => Err(EmbedError::WrongTask { does: "embeds texts", wanted: "scores them" }),
            Task::Generate(_) => Err(EmbedError::WrongTask { does: "generates text", wanted: "scores texts" }),
        }
    }

    /// The text of the prompt to use.
    fn find_prompt(&self, asked: Option<&str>) -> Result<Option<&str>, EmbedError> {
        let Some(name) = asked.or(self.spec.default_prompt.as_deref()) else { return Ok(None) };
        let prompts = &self.spec.prompts;
        match prompts.get(name) {
            Some(prompt) if prompt.is_empty() => Ok(None),
            Some(prompt) => Ok(Some(prompt)),
            None => Err(EmbedError::UnknownPrompt { asked: name.to_owned(), known: prompts.keys().cloned().collect() }),
        }
    }
}
