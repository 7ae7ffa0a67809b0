//! What can be asked of a model before anything is computed: its name, what it does, texts as tokens and tokens as text.
//! Computes nothing, waits for nothing, and takes no place in the queue.

use super::{Engine, EngineError, Work};
use crate::reading::{Reader, Reading};
use crate::spec::ModelSpec;
use crate::tokenize::SpelledToken;

/// Texts are read by the thread that asks: what is large is read beside (`background`), several requests at a time.
const ONE: usize = 1;

impl Engine {
    /// What people call the models, in their order.
    pub fn model_names(&self) -> &[String] {
        &self.0.names
    }

    /// What a model's files say of it.
    pub fn spec(&self, model: usize) -> Option<&ModelSpec> {
        self.0.readers.get(model).map(|reader| &reader.spec)
    }

    /// Texts to embed as work, with the named prompt of the model before each; without a name, with its default prompt if
    /// any. Texts that are longer than the model reads are cut, and say so.
    pub fn read<T: AsRef<str> + Sync>(
        &self,
        model: usize,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<Work, EngineError> {
        self.read_by(ONE, model, texts, prompt)
    }

    /// As [`Engine::read`], by so many threads, for a program that has nothing else to do meanwhile.
    pub fn read_by<T: AsRef<str> + Sync>(
        &self,
        threads: usize,
        model: usize,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<Work, EngineError> {
        Ok(work(model, self.reader(model)?.texts(texts, prompt, threads)?))
    }

    /// Texts to score with a classifier as work.
    pub fn read_scored<T: AsRef<str> + Sync>(&self, model: usize, texts: &[T]) -> Result<Work, EngineError> {
        Ok(work(model, self.reader(model)?.scored(texts, ONE)?))
    }

    /// Pairs of texts to score with a classifier as work.
    pub fn read_pairs<A, B>(&self, model: usize, pairs: &[(A, B)]) -> Result<Work, EngineError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        Ok(work(model, self.reader(model)?.pairs(pairs, ONE)?))
    }

    /// Texts to embed, given as the model's own token ids, as work. The special tokens are put around those that lack them, and what
    /// is longer than the model reads is cut.
    pub fn read_ids(&self, model: usize, texts: Vec<Vec<u32>>) -> Result<Work, EngineError> {
        let reader = self.reader(model)?;
        reader.must_embed()?;
        let Some(tokenizer) = reader.tokenizer_if_any() else { return Ok(Work::from_ids(model, texts)) };
        let texts = texts.iter().map(|ids| tokenizer.complete(ids)).collect();
        Ok(Work { model, texts, ..Work::default() })
    }

    /// The tokens of a text one by one, cut to what the model reads; with the special ones around it if wanted.
    pub fn spell(&self, model: usize, text: &str, with_special: bool) -> Result<Vec<SpelledToken>, EngineError> {
        Ok(self.reader(model)?.tokenizer()?.spell(text, with_special).map_err(crate::EmbedError::from)?)
    }

    /// The text of the model's own token ids, without the special ones if wanted.
    pub fn decode(&self, model: usize, ids: &[u32], skip_special: bool) -> Result<String, EngineError> {
        let reader = self.reader(model)?;
        // No text has so many tokens that an index would not do; an id that the model lacks is told by its text.
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= reader.spec.shape.vocab) {
            let vocab = reader.spec.shape.vocab;
            return Err(crate::EmbedError::UnknownId { text: 0, id, vocab }.into());
        }
        Ok(reader.tokenizer()?.decode(ids, skip_special).map_err(crate::EmbedError::from)?)
    }

    fn reader(&self, model: usize) -> Result<&Reader, EngineError> {
        self.0.readers.get(model).ok_or(EngineError::NoModel(model))
    }
}

fn work(model: usize, reading: Reading) -> Work {
    Work { model, texts: reading.texts, skip: reading.skip, ..Work::default() }
}
