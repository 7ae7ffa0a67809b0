//! Constraints over the tokens of a model: which may follow what an answer has so far.
//! Chooses no token, and keeps no answer: each has a matcher of its own.

use super::constraint::{Constraint, ConstraintError};
use crate::tokenize::Vocabulary;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// Makes matchers for the tokens of one model.
pub(crate) struct Grammars {
    factory: ParserFactory,
}

/// What may follow an answer under its constraint.
pub(crate) enum Next {
    /// One of these tokens. The end is among them where the answer may end.
    Tokens(SimpleVob),
    /// Nothing: the answer is complete.
    End,
}

/// Where an answer stands under its constraint.
pub(crate) struct Match {
    matcher: Matcher,
    kind: &'static str,
}

/// Longer tokens are never taken: a trie of tokens has a bound, and no token of a text is that long.
const TOKEN_BYTES_MAX: usize = 512;
/// Schemas are read by functions that call themselves.
const STACK_BYTES: usize = 64 << 20;
/// Of what a compiler says about a constraint.
const REASON_CHARS_MAX: usize = 400;
/// Between the parts of JSON: nothing, a space, or a new line with an indentation. Without a bound a model may write
/// spaces for ever.
const WHITESPACE: &str = r"[ ]|\n[ ]{0,24}";

/// Refuses a constraint that no model can follow. Needs no model: it is compiled for single bytes.
pub(crate) fn check(constraint: &Constraint) -> Result<(), ConstraintError> {
    static BYTES: OnceLock<Result<Grammars, ConstraintError>> = OnceLock::new();
    constraint.check_size()?;
    let bytes = BYTES.get_or_init(|| Grammars::of(ApproximateTokEnv::single_byte_env(), &[]));
    bytes.as_ref().map_err(Clone::clone)?.begin(constraint).map(|_| ())
}

impl Grammars {
    /// Those of a model with this many logits; these tokens end an answer.
    pub(crate) fn new(vocabulary: &Vocabulary, vocab: usize, ends: &[u32]) -> Result<Self, ConstraintError> {
        let is_end = |id: u32| ends.contains(&id);
        let word = |id: u32| match vocabulary.bytes(id) {
            bytes if bytes.len() > TOKEN_BYTES_MAX => Vec::new(),
            [] => Vec::new(),
            // Marked so that no text matches its name.
            bytes if vocabulary.is_control(id) || is_end(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            bytes => bytes.to_vec(),
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32).map(word).collect();
        let ends: Vec<u32> = ends.iter().copied().filter(|id| (*id as usize) < vocab).collect();
        let made = || {
            let end = ends.first().copied().unwrap_or(INVALID_TOKEN);
            let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words);
            let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
            Self::of(Arc::new(ApproximateTokEnv::new(trie)), &llguidance::earley::SlicedBiasComputer::general_slices())
        };
        // The trie has bounds that it asserts.
        catch_unwind(AssertUnwindSafe(made)).unwrap_or_else(|_| Err(refused("vocabulary", "it has too many bytes")))
    }

    fn of(tokens: TokEnv, slices: &[String]) -> Result<Self, ConstraintError> {
        let factory = ParserFactory::new(&tokens, Default::default(), slices);
        let mut factory = factory.map_err(|error| refused("vocabulary", &error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Self { factory })
    }

    /// The beginning of an answer under a constraint.
    pub(crate) fn begin(&self, constraint: &Constraint) -> Result<Match, ConstraintError> {
        constraint.check_size()?;
        let kind = constraint.kind();
        let compile = || {
            let parser = self.factory.create_parser(grammar(constraint)?);
            let parser = parser.map_err(|error| refused(kind, &format!("{error:#}")))?;
            Ok(Match { matcher: Matcher::new(Ok(parser)), kind })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("magray-grammar".to_owned()).stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| refused(kind, &error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(refused(kind, "its compiler failed")))
        })
    }
}

impl Match {
    /// Another answer that stands here.
    pub(crate) fn copy(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), kind: self.kind }
    }

    /// Takes a token of the answer; says whether the answer is complete, so that nothing may follow.
    pub(crate) fn take(&mut self, token: u32) -> Result<bool, ConstraintError> {
        let taken = self.matcher.consume_token(token);
        taken.map_err(|error| refused(self.kind, &error.to_string()))?;
        Ok(self.matcher.is_stopped())
    }

    /// Takes back the last tokens.
    pub(crate) fn take_back(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        self.matcher.rollback(tokens).map_err(|error| refused(self.kind, &error.to_string()))
    }

    /// What may follow.
    pub(crate) fn next(&mut self) -> Result<Next, ConstraintError> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(Next::End);
        }
        // A model without an end token ends where nothing else may follow.
        let may_end = self.matcher.is_accepting().unwrap_or(false);
        match self.matcher.compute_mask() {
            Ok(mask) => Ok(Next::Tokens(mask)),
            Err(_) if may_end => Ok(Next::End),
            Err(error) => Err(refused(self.kind, &format!("no token of the model may follow: {error}"))),
        }
    }
}

fn refused(kind: &'static str, reason: &str) -> ConstraintError {
    // What follows an angle bracket is the state of the compiler.
    let lines = reason.lines().map(str::trim).take_while(|line| !line.starts_with('<'));
    let told: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    ConstraintError::Refused { kind, reason: told.join(" ").chars().take(REASON_CHARS_MAX).collect() }
}

fn grammar(constraint: &Constraint) -> Result<TopLevelGrammar, ConstraintError> {
    match constraint {
        Constraint::JsonSchema(text) => {
            let schema: Value =
                serde_json::from_str(text).map_err(|error| refused(constraint.kind(), &error.to_string()))?;
            let mut schema = match schema {
                Value::Bool(true) => Value::Object(serde_json::Map::new()),
                object @ Value::Object(_) => object,
                _ => return Err(refused(constraint.kind(), "it is no JSON object")),
            };
            if schema.get("x-guidance").is_none() {
                let whitespace_pattern = Some(WHITESPACE.to_owned());
                JsonCompileOptions { whitespace_pattern, ..JsonCompileOptions::default() }.apply_to(&mut schema);
            }
            Ok(TopLevelGrammar::from_json_schema(schema))
        }
        Constraint::Regex(text) => Ok(TopLevelGrammar::from_regex(&one_line(text))),
        Constraint::Choices(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            Ok(TopLevelGrammar::from_regex(&texts.join("|")))
        }
    }
}

/// A regular expression in one line, as grammars have it.
fn one_line(regex: &str) -> String {
    regex.replace('\n', "\\n").replace('\r', "\\r")
}

/// A regular expression that matches this text alone.
fn literal(text: &str) -> String {
    text.chars().fold(String::new(), |mut regex, character| {
        match character.is_ascii_alphanumeric() {
            true => regex.push(character),
            false => {
                // Writing to a text never fails.
                let _ = write!(regex, "\\x{{{:X}}}", u32::from(character));
            }
        }
        regex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(text: &str) -> Constraint {
        Constraint::JsonSchema(text.to_owned())
    }

    fn regex(text: &str) -> Constraint {
        Constraint::Regex(text.to_owned())
    }

    fn choices(texts: &[&str]) -> Constraint {
        Constraint::Choices(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    /// A token a byte, then an end.
    const END: u32 = 256;

    fn grammars() -> Grammars {
        let words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain([b"\xff<end>".to_vec()]).collect();
        let trie = TokTrie::from(&TokRxInfo::new(257, END), &words);
        Grammars::of(Arc::new(ApproximateTokEnv::new(trie)), &[]).unwrap()
    }

    /// Whether a text may be the whole answer.
    fn allows(constraint: &Constraint, text: &str) -> bool {
        let mut answer = grammars().begin(constraint).unwrap();
        for byte in text.bytes() {
            match answer.next().unwrap() {
                Next::Tokens(mask) if mask.is_allowed(u32::from(byte)) => answer.take(u32::from(byte)).unwrap(),
                _ => return false,
            };
        }
        match answer.next().unwrap() {
            Next::End => true,
            Next::Tokens(mask) => mask.is_allowed(END),
        }
    }

    #[test]
    fn texts_are_allowed_or_not() {
        let point = schema(
            r#"{"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "name": {"enum": ["a", "b\n"]}},
                "required": ["x", "name"], "additionalProperties": false}"#,
        );
        assert!(allows(&point, r#"{"x": 7, "name": "a"}"#));
        assert!(allows(&point, "{\n  \"x\": 7,\n  \"name\": \"b\\n\"\n}"));
        assert!(allows(&point, r#"{"x":99,"name":"a"}"#));
        for wrong in
            [r#"{"name":"a","x":7}"#, r#"{"x":100,"name":"a"}"#, r#"{"x":7}"#, "{\n\n\"x\":7,\"name\":\"a\"}", "[]", ""]
        {
            assert!(!allows(&point, wrong), "{wrong}");
        }
        let local = schema(
            r##"{"$defs": {"n": {"const": 5}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}"##,
        );
        assert!(allows(&local, "[5, 5]") && !allows(&local, "[5,5,5]"));
        let date = regex("^[0-9]{4}-[0-9]{2}/x$");
        assert!(allows(&date, "2024-05/x") && !allows(&date, "2024-05") && !allows(&date, "24-05/x"));
        let lines = regex("a\nb|\\d");
        assert!(allows(&lines, "a\nb") && allows(&lines, "7") && !allows(&lines, "a"));
        let some = choices(&["yes", "yes, sir", "n/o (\u{e9}|x)*\n"]);
        assert!(allows(&some, "yes") && allows(&some, "yes, sir") && allows(&some, "n/o (\u{e9}|x)*\n"));
        assert!(!allows(&some, "yes,") && !allows(&some, "n/o x") && !allows(&some, "y"));
    }

    #[test]
    fn tokens_that_were_taken_back_may_come_otherwise() {
        let mut answer = grammars().begin(&choices(&["abc", "abd"])).unwrap();
        for byte in *b"ab" {
            assert!(!answer.take(byte.into()).unwrap());
        }
        assert!(answer.take(b'c'.into()).unwrap(), "nothing may follow");
        assert!(matches!(answer.next().unwrap(), Next::End));
        let copy = answer.copy();
        answer.take_back(1).unwrap();
        assert!(answer.take(b'd'.into()).unwrap());
        let mut copy = copy;
        copy.take_back(2).unwrap();
        assert!(copy.take(b'x'.into()).is_err());
    }

    #[test]
    fn what_no_model_can_follow_is_refused_with_its_reason() {
        let reason = |constraint: &Constraint| check(constraint).unwrap_err().to_string();
        let cases = [
            (schema("{\"type\": "), "JSON schema"),
            (schema("[1]"), "no JSON object"),
            (schema(r#"{"type": "no such"}"#), "JSON schema"),
            (schema(r#"{"$ref": "https://example.com/other"}"#), "JSON schema"),
            (schema(r#"{"type": "integer", "minimum": 5, "maximum": 4}"#), "nsatisfiable"),
            (regex("(a"), "regular expression"),
        ];
        for (constraint, part) in cases {
            let told = reason(&constraint);
            assert!(told.contains(part) && !told.contains('\n') && told.len() < 600, "{constraint:?}: {told}");
        }
        assert!(check(&schema("true")).is_ok());
        assert!(check(&schema(r#"{"type": "object"}"#)).is_ok());
        assert!(check(&regex("[a-z]{1,9}")).is_ok());
    }

    #[test]
    fn a_schema_that_is_nested_deeply_ends_nothing() {
        let deep = format!("{}{{}}{}", r#"{"items": "#.repeat(120), "}".repeat(120));
        assert!(check(&schema(&deep)).is_ok());
        let wide = format!("{}a{}", "(".repeat(5_000), ")".repeat(5_000));
        assert!(check(&regex(&wide)).is_err());
        let loops = r##"{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}"##;
        let _ = check(&schema(loops));
    }
}
