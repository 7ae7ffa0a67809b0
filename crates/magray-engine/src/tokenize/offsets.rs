//! Where the tokens of a text stand in it: the tokenizers crate does not tell, so its steps are taken here one by one.
//! Never guesses: where the steps lead to other tokens, or a character cannot be followed, a token has no place.

use std::{
    borrow::Cow,
    collections::HashMap,
    ops::{ControlFlow, Range},
};

use tokenizers::pipeline::{
    Model, Normalizer, PipelineModel, PipelineNormalizer, PipelinePatternMatcher, PipelineToken, PipelineTokenizer,
    PreTokenizer, PreTokenizerScratch, normalize_all,
};

/// Characters that one normalised character is made of at most, such as a letter and its accents.
const COMPOSED_MAX: usize = 8;
/// Characters in a row that a normaliser adds to a text at most.
const INSERTED_MAX: usize = 4;

/// The bytes of the text that each of these tokens, the first of the text, comes from.
pub(super) fn offsets(pipeline: &PipelineTokenizer, text: &str, ids: &[u32]) -> Vec<Option<Range<usize>>> {
    let traced = trace(pipeline, text, ids.len()).unwrap_or_default();
    let is_same = traced.iter().map(|(id, _)| id).take(ids.len()).eq(ids);
    let mut places: Vec<_> = traced.into_iter().take(ids.len()).map(|(_, place)| place.filter(|_| is_same)).collect();
    places.resize(ids.len(), None);
    if matches!(pipeline.get_model(), PipelineModel::BPE(model) if model.is_byte_level()) {
        // Such tokens begin with the space before their word.
        for place in places.iter_mut().flatten() {
            let inner = &text[place.clone()];
            place.start += inner.len() - inner.trim_start_matches(' ').len();
            place.end = (place.start + text[place.clone()].trim_end_matches(' ').len()).max(place.start);
        }
    }
    places
}

type Traced = Vec<(u32, Option<Range<usize>>)>;

/// The tokens of a text with their places, until there are enough.
fn trace(pipeline: &PipelineTokenizer, text: &str, enough: usize) -> tokenizers::Result<Traced> {
    let (model, mut traced) = (pipeline.get_model(), Traced::new());
    let (mut scratch, mut split) = (model.init_scratch(), PreTokenizerScratch::default());
    let (mut words, mut tokens) = (Vec::new(), Vec::new());
    let mut characters = Characters { normalizers: pipeline.get_normalizers(), known: HashMap::new() };
    for (part, token) in segments(pipeline, text, false) {
        if traced.len() >= enough {
            break;
        }
        if let Some(id) = token {
            traced.push((id, Some(part)));
            continue;
        }
        let normalized = normalize_all(pipeline.get_normalizers(), &text[part.clone()], part.start)?;
        let sources = characters.align(&text[part.clone()], &normalized, part.start)?;
        let place = |bytes: Range<usize>| {
            let (first, last) = (*sources.get(bytes.start)?, *sources.get(bytes.end.checked_sub(1)?)?);
            Some(first?.0 as usize..last?.1 as usize)
        };
        for (inner, token) in segments(pipeline, &normalized, true) {
            if let Some(id) = token {
                traced.push((id, place(inner)));
                continue;
            }
            words.clear();
            pipeline.get_pre_tokenizer().pre_tokenize(&normalized[inner.clone()], &mut split, &mut words)?;
            for word in &words {
                let (start, end) = (inner.start + word.range().start, inner.start + word.range().end);
                tokens.clear();
                model.tokenize_pipeline(&normalized[start..end], &mut scratch, &mut tokens)?;
                let ids = PipelineToken::cast_slice(&tokens);
                for (id, piece) in ids.iter().zip(pieces(model, &normalized[start..end], ids)) {
                    traced.push((*id, place(start + piece.start..start + piece.end)));
                }
                if traced.len() >= enough {
                    return Ok(traced);
                }
            }
        }
    }
    Ok(traced)
}

/// The tokens that stand in a text as they are, and what is between them.
fn segments(pipeline: &PipelineTokenizer, text: &str, is_normalized: bool) -> Vec<(Range<usize>, Option<u32>)> {
    let (mut segments, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let added = pipeline.get_added_vocabulary();
        let Some(((start, end), id)) = added.extract_next(text.as_bytes(), at, is_normalized, false) else { break };
        if at < start {
            segments.push((at..start, None));
        }
        segments.push((start..end, Some(id)));
        at = end.max(at + 1);
    }
    if at < text.len() {
        segments.push((at..text.len(), None));
    }
    segments
}

/// Divides a word among its tokens.
fn pieces(model: &PipelineModel, word: &str, ids: &[u32]) -> Vec<Range<usize>> {
    let is_bytes = matches!(model, PipelineModel::BPE(model) if model.is_byte_level());
    let texts: Vec<String> = ids.iter().map(|id| model.id_to_token(*id).unwrap_or_default()).collect();
    let text = |at: usize| match model {
        PipelineModel::WordPiece(_) if at > 0 => texts[at].strip_prefix("##").unwrap_or(&texts[at]),
        _ => texts[at].as_str(),
    };
    let mut from = 0;
    let divide = |at: usize| {
        let (start, left) = (from, word.get(from..).unwrap_or_default());
        let length = match text(at) {
            _ if at + 1 == ids.len() => word.len() - start,
            // A letter a byte.
            own if is_bytes => own.chars().count(),
            own if !own.is_empty() && left.starts_with(own) => own.len(),
            own if own.len() == 6 && own.starts_with("<0x") => 1,
            // A token for what the vocabulary does not know ends where the next begins.
            _ => {
                let first = left.chars().next().map_or(0, char::len_utf8);
                left.get(first..).and_then(|after| after.find(text(at + 1))).map_or(left.len(), |found| first + found)
            }
        };
        from = (start + length).min(word.len());
        start..from
    };
    (0..ids.len()).map(divide).collect()
}

/// Follows characters through the normalisers.
struct Characters<'a> {
    normalizers: &'a [PipelineNormalizer],
    /// What single characters become.
    known: HashMap<char, String>,
}

impl Characters<'_> {
    /// For each byte of a normalised text the first character that it comes from, as bytes of the whole text; the text
    /// begins there at `offset`.
    fn align(&mut self, text: &str, normalized: &str, offset: usize) -> tokenizers::Result<Vec<Option<(u32, u32)>>> {
        let mut sources = vec![None; normalized.len()];
        let (mut from, mut at) = (0, 0);
        while let Some(character) = text[from..].chars().next() {
            let end = from + character.len_utf8();
            let source = u32::try_from(offset + from).ok().zip(u32::try_from(offset + end).ok());
            let mut lengths = text[from..].char_indices().map(|(start, c)| start + c.len_utf8()).take(COMPOSED_MAX);
            let found = lengths.try_fold(None, |_, length| {
                let alone = match self.alone(&text[from..from + length]) {
                    Ok(alone) => alone,
                    Err(error) => return ControlFlow::Break(Err(error)),
                };
                let is_dropped = alone.is_empty() && length == character.len_utf8();
                let taken = if is_dropped { Some(0) } else { taken(&normalized[at..], &alone) };
                match taken {
                    Some(bytes) => ControlFlow::Break(Ok((length, bytes))),
                    None => ControlFlow::Continue(None::<()>),
                }
            });
            let (length, bytes) = match found {
                ControlFlow::Break(found) => found?,
                // It has left no trace, such as one of several spaces.
                ControlFlow::Continue(_) => (character.len_utf8(), 0),
            };
            sources[at..at + bytes].fill(source);
            (from, at) = (from + length, at + bytes);
        }
        Ok(sources)
    }

    /// What a piece of a text becomes, without what is put before whole texts.
    fn alone(&mut self, piece: &str) -> tokenizers::Result<Cow<'_, str>> {
        let mut characters = piece.chars();
        let single = characters.next().filter(|_| characters.next().is_none());
        let Some(single) = single else { return Ok(self.compute(piece)?.into()) };
        if !self.known.contains_key(&single) {
            let computed = self.compute(piece)?;
            self.known.insert(single, computed);
        }
        Ok(self.known[&single].as_str().into())
    }

    fn compute(&self, piece: &str) -> tokenizers::Result<String> {
        let mut alone = piece.to_owned();
        for normalizer in self.normalizers {
            alone = match normalizer {
                PipelineNormalizer::Prepend(_) | PipelineNormalizer::Strip(_) => alone,
                PipelineNormalizer::Metaspace(spaces) if spaces.drop_whitespace() => alone.split_whitespace().collect(),
                PipelineNormalizer::Metaspace(spaces) => alone.replace(' ', &spaces.delimiter().to_string()),
                other => other.normalize(&alone, 1)?.into_owned(),
            };
        }
        Ok(alone)
    }
}

/// How many bytes of the normalised text a piece takes, with the spaces that were put before it.
fn taken(normalized: &str, piece: &str) -> Option<usize> {
    let is_inserted = |character: &char| character.is_whitespace() || *character == '\u{2581}';
    let mut inserted = 0;
    let mut characters = normalized.chars().take_while(is_inserted).take(INSERTED_MAX);
    loop {
        if !piece.is_empty() && normalized[inserted..].starts_with(piece) {
            return Some(inserted + piece.len());
        }
        inserted += characters.next()?.len_utf8();
    }
}
