//! What a verdict has to be: its JSON schema, the cases that it may cite, and what is read from it.
//! Compiles no grammar: the engine does, and holds answers to it.

use serde_json::{Map, Value, json};

/// The schema of a critic's verdicts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VerdictSchema {
    schema: Map<String, Value>,
    is_usual: bool,
}

/// A verdict, as far as it is understood.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// From 0 to 1.
    pub(crate) score: f64,
    pub(crate) reasons: Vec<String>,
    /// Ids of precedents, each once.
    pub(crate) citations: Vec<String>,
    /// All that the critic said.
    pub(crate) whole: Value,
}

const SCORE: &str = "score";
const CITATIONS: &str = "citations";
/// Reasons of the usual schema, and characters of each.
const REASONS_MAX: usize = 3;
const REASON_CHARS_MAX: usize = 160;

impl VerdictSchema {
    /// Reasons first: a model that has said why scores better than one that has not. Scores are few, since a model does not
    /// tell more apart, and none has digits without end.
    pub(crate) fn usual() -> Self {
        let scores: Vec<Value> = (0..=10)
            .map(|tenth| if tenth % 10 == 0 { json!(tenth / 10) } else { json!(f64::from(tenth) / 10.0) })
            .collect();
        let reason = json!({"type": "string", "minLength": 1, "maxLength": REASON_CHARS_MAX});
        let reasons = json!({"type": "array", "items": reason, "minItems": 1, "maxItems": REASONS_MAX});
        let schema = json!({
            "type": "object", "properties": {"reasons": reasons, SCORE: {"enum": scores}},
            "required": ["reasons", SCORE], "additionalProperties": false,
        });
        let Value::Object(schema) = schema else { unreachable!("it is an object") };
        Self { schema, is_usual: true }
    }

    /// A schema of the settings. Whether a model can follow it is found where it is used.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let schema: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let Value::Object(schema) = schema else { return Err("it is no JSON object".to_owned()) };
        let has_score = schema.get("properties").is_some_and(|known| known.get(SCORE).is_some());
        let is_required =
            schema.get("required").and_then(Value::as_array).is_some_and(|all| all.contains(&json!(SCORE)));
        if schema.get("type") != Some(&json!("object")) || !has_score || !is_required {
            return Err(
                "a verdict is an object (\"type\": \"object\") with a property \"score\" that is required".to_owned()
            );
        }
        if schema["properties"].get(CITATIONS).is_some() {
            return Err("the property \"citations\" is added where there are precedents: leave it out".to_owned());
        }
        Ok(Self { schema, is_usual: false })
    }

    pub(super) fn is_usual(&self) -> bool {
        self.is_usual
    }

    /// With a list of citations that has none but these ids.
    pub(super) fn citing(&self, ids: &[&str]) -> Value {
        let mut schema = self.schema.clone();
        if ids.is_empty() {
            return Value::Object(schema);
        }
        let citations = json!({"type": "array", "items": {"enum": ids}, "maxItems": ids.len()});
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            // The score comes after what it follows from.
            let score = properties.shift_remove(SCORE);
            properties.insert(CITATIONS.to_owned(), citations);
            properties.extend(score.map(|score| (SCORE.to_owned(), score)));
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.push(json!(CITATIONS));
        }
        Value::Object(schema)
    }
}

impl Verdict {
    /// Reads what a critic said; an error says what is wrong with it.
    pub(super) fn read(text: &str, ids: &[&str]) -> Result<Self, String> {
        let whole: Value = serde_json::from_str(text).map_err(|error| format!("its verdict is no JSON: {error}"))?;
        let score = whole[SCORE].as_f64().filter(|score| (0.0..=1.0).contains(score));
        let score = score.ok_or_else(|| {
            let shown: String = whole[SCORE].to_string().chars().take(40).collect();
            format!("its score is no number from 0 to 1: {shown}")
        })?;
        let texts = |name: &str| -> Vec<String> {
            match &whole[name] {
                Value::String(text) => vec![text.clone()],
                Value::Array(all) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
                _ => Vec::new(),
            }
        };
        let mut reasons = texts("reasons");
        reasons.extend(texts("reason"));
        let mut citations: Vec<String> = Vec::new();
        for id in texts(CITATIONS) {
            if ids.contains(&id.as_str()) && !citations.contains(&id) {
                citations.push(id);
            }
        }
        Ok(Self { score, reasons, citations, whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_schema_asks_for_reasons_before_the_score() {
        let plain = VerdictSchema::usual().citing(&[]);
        let names: Vec<&String> = plain["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["reasons", "score"]);
        let scores = plain["properties"]["score"]["enum"].as_array().unwrap();
        assert_eq!((scores.len(), &scores[0], &scores[3], &scores[10]), (11, &json!(0), &json!(0.3), &json!(1)));
        let citing = VerdictSchema::usual().citing(&["7", "x"]);
        let names: Vec<&String> = citing["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["reasons", "citations", "score"]);
        assert_eq!(citing["properties"]["citations"]["items"]["enum"], json!(["7", "x"]));
        assert_eq!(citing["required"], json!(["reasons", "score", "citations"]));
    }

    #[test]
    fn a_schema_without_a_score_is_refused() {
        let good = r#"{"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}"#;
        assert!(!VerdictSchema::read(good).unwrap().is_usual());
        for (wrong, told) in [
            ("{", "no JSON"),
            ("[1]", "no JSON object"),
            ("{}", "\"score\" that is required"),
            (r#"{"type": "object", "properties": {"score": {}}}"#, "required"),
            (r#"{"properties": {"score": {}}, "required": ["score"]}"#, "object"),
            (r#"{"type": "object", "properties": {"score": {}, "citations": {}}, "required": ["score"]}"#, "citations"),
        ] {
            let error = VerdictSchema::read(wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn verdicts_are_read_and_nothing_is_made_up() {
        let text = r#"{"reasons": ["a", "b"], "citations": ["7", "7", "9"], "score": 0.4, "more": 1}"#;
        let verdict = Verdict::read(text, &["7", "8"]).unwrap();
        assert_eq!((verdict.score, &verdict.reasons[..]), (0.4, &["a".to_owned(), "b".to_owned()][..]));
        assert_eq!((&verdict.citations[..], &verdict.whole["more"]), (&["7".to_owned()][..], &json!(1)));
        for wrong in ["", "{}", r#"{"score": 1.5}"#, r#"{"score": "high"}"#, r#"{"score": null}"#] {
            assert!(Verdict::read(wrong, &[]).is_err(), "{wrong}");
        }
        assert_eq!(Verdict::read(r#"{"score": 1, "reason": "x"}"#, &[]).unwrap().reasons, ["x"]);
    }
}
