//! How a family of models writes thoughts and calls of tools, found out from its template.
//! Reads no answer itself; `answer` does.

use crate::conversation::Tool;
use serde_json::{Value, json};

/// How answers of a model are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFormat {
    pub(crate) thinking: Option<Block>,
    pub(crate) calls: CallStyle,
}

/// Two marks around a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub open: &'static str,
    pub close: &'static str,
}

/// How calls of tools are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// JSON between marks: Hermes, Qwen, Granite.
    Tagged(Block),
    /// A bare JSON object with `parameters`, or one after a mark: Llama 3.
    Llama,
    /// After a mark, an array of objects or a name and its arguments: Mistral.
    Mistral,
}

/// How an answer is forced to be a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedCall {
    /// The text that the answer begins with. It belongs to the prompt, and to what the reader gets first.
    pub opener: String,
    /// The JSON schema that holds for the rest of the answer.
    pub schema: Value,
}

pub(crate) const PYTHON_TAG: &str = "<|python_tag|>";
pub(crate) const TOOL_CALLS: &str = "[TOOL_CALLS]";
pub(crate) const CALL_ID: &str = "[CALL_ID]";
pub(crate) const ARGS: &str = "[ARGS]";

const HERMES: Block = Block { open: "<tool_call>", close: "</tool_call>" };
const TAGS: [Block; 2] = [HERMES, Block { open: "<|tool_call|>", close: "<|/tool_call|>" }];
const THOUGHTS: [Block; 4] = [
    Block { open: "<think>", close: "</think>" },
    Block { open: "[THINK]", close: "[/THINK]" },
    Block { open: "<thinking>", close: "</thinking>" },
    Block { open: "<reasoning>", close: "</reasoning>" },
];

impl AnswerFormat {
    /// The format of models that have this template.
    pub(crate) fn of(source: &str) -> Self {
        let has = |text: &str| source.contains(text);
        let calls = if has(TOOL_CALLS) {
            CallStyle::Mistral
        } else if has(PYTHON_TAG) || (has("<|start_header_id|>") && has("\"parameters\": ")) {
            CallStyle::Llama
        } else {
            CallStyle::Tagged(TAGS.into_iter().find(|tag| has(tag.open)).unwrap_or(HERMES))
        };
        Self { thinking: THOUGHTS.into_iter().find(|block| has(block.close)), calls }
    }

    /// Marks that may be special tokens: the text that a reader gets must have them.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = match self.calls {
            CallStyle::Tagged(block) => vec![block.open, block.close],
            CallStyle::Llama => vec![PYTHON_TAG],
            CallStyle::Mistral => vec![TOOL_CALLS, CALL_ID, ARGS],
        };
        markers.extend(self.thinking.into_iter().flat_map(|block| [block.open, block.close]));
        markers
    }

    /// The mark that a call begins with.
    pub(crate) fn call_marker(&self) -> &'static str {
        match self.calls {
            CallStyle::Tagged(block) => block.open,
            CallStyle::Llama => PYTHON_TAG,
            CallStyle::Mistral => TOOL_CALLS,
        }
    }

    /// Forces a call of one of these tools: what the answer begins with, and the schema of the rest.
    pub fn forced_call(&self, tools: &[&Tool]) -> ForcedCall {
        let forced = |opener: &str, schema: Value| ForcedCall { opener: opener.to_owned(), schema };
        match (self.calls, tools) {
            (CallStyle::Tagged(block), _) => forced(&format!("{}\n", block.open), one_of(tools, "arguments")),
            (CallStyle::Llama, _) => forced("", one_of(tools, "parameters")),
            (CallStyle::Mistral, [tool]) => forced(&format!("{TOOL_CALLS}{}{ARGS}", tool.name), parameters(tool)),
            (CallStyle::Mistral, _) => {
                let call = one_of(tools, "arguments");
                forced(TOOL_CALLS, json!({"type": "array", "items": call, "minItems": 1, "maxItems": 1}))
            }
        }
    }
}

/// A schema of one call, its arguments under this key.
fn one_of(tools: &[&Tool], arguments: &str) -> Value {
    let call = |tool: &&Tool| {
        json!({
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments: parameters(tool)},
            "required": ["name", arguments],
            "additionalProperties": false,
        })
    };
    match tools {
        [tool] => call(tool),
        _ => json!({"anyOf": tools.iter().map(call).collect::<Vec<_>>()}),
    }
}

/// The schema of a tool's arguments. A tool without one takes an object.
fn parameters(tool: &Tool) -> Value {
    match &tool.parameters {
        Value::Object(schema) if !schema.is_empty() => closed(&tool.parameters),
        _ => json!({"type": "object"}),
    }
}

/// The schema without arguments that it does not name and only allows: no tool has a use for them. What is combined with other schemas
/// stays as it is, since those may name more.
fn closed(schema: &Value) -> Value {
    const COMBINES: [&str; 10] = [
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "dependentSchemas",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
    ];
    let mut schema = schema.clone();
    let Some(parts) = schema.as_object_mut().filter(|parts| COMBINES.iter().all(|word| !parts.contains_key(*word)))
    else {
        return schema;
    };
    if let Some(items) = parts.get_mut("items") {
        *items = closed(items);
    }
    if let Some(Value::Object(properties)) = parts.get_mut("properties") {
        properties.values_mut().for_each(|property| *property = closed(property));
        parts.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Tool {
        Tool { name: name.to_owned(), description: None, parameters: json!({"type": "object", "maxProperties": 0}) }
    }

    #[test]
    fn families_are_known_by_their_marks() {
        let calls = |source: &str| AnswerFormat::of(source).calls;
        assert_eq!(calls("{{ '<tool_call>' }}"), CallStyle::Tagged(HERMES));
        assert_eq!(calls("{{ '<|tool_call|>' }}"), CallStyle::Tagged(TAGS[1]));
        assert_eq!(calls("<|start_header_id|> {\"name\": x, \"parameters\": y}"), CallStyle::Llama);
        assert_eq!(calls("<|python_tag|>"), CallStyle::Llama);
        assert_eq!(calls("[TOOL_CALLS]"), CallStyle::Mistral);
        assert_eq!(calls(""), CallStyle::Tagged(HERMES));
        assert_eq!(AnswerFormat::of("").thinking, None);
        assert_eq!(AnswerFormat::of("content.split('</think>')").markers()[2..], ["<think>", "</think>"]);
    }

    #[test]
    fn a_forced_call_has_an_opener_and_a_schema() {
        let (one, two) = (tool("a"), tool("b"));
        let hermes = AnswerFormat::of("").forced_call(&[&one, &two]);
        assert_eq!(hermes.opener, "<tool_call>\n");
        assert_eq!(hermes.schema["anyOf"][1]["properties"]["name"]["const"], "b");
        let llama = AnswerFormat::of(PYTHON_TAG).forced_call(&[&one]);
        assert_eq!((llama.opener.as_str(), &llama.schema["required"]), ("", &json!(["name", "parameters"])));
        let mistral = AnswerFormat::of(TOOL_CALLS);
        assert_eq!(mistral.forced_call(&[&one]).opener, "[TOOL_CALLS]a[ARGS]");
        assert_eq!(mistral.forced_call(&[&one]).schema, one.parameters);
        assert_eq!(mistral.forced_call(&[&one, &two]).schema["type"], "array");
    }

    #[test]
    fn a_forced_call_has_the_arguments_that_its_tool_names() {
        let inner = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
        let open = json!({"properties": {}, "additionalProperties": {"type": "string"}});
        let combined = json!({"properties": {"x": inner}, "allOf": [{"properties": {"y": {}}}]});
        let named = closed(&json!({"properties": {"a": inner, "b": {"items": inner}, "c": open, "d": combined}}));
        assert_eq!(named["additionalProperties"], false);
        let properties = &named["properties"];
        assert_eq!(properties["a"]["additionalProperties"], false);
        assert_eq!(properties["b"]["items"]["additionalProperties"], false);
        assert_eq!((&properties["c"], &properties["d"]), (&open, &combined));
        assert_eq!(closed(&json!({"type": "object"})), json!({"type": "object"}), "any arguments");
    }
}
