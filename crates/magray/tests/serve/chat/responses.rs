//! OpenAI's responses: whole and as events, functions, formats, and what is refused.

use serde_json::{Value, json};

use super::{Chat, assert_fits, schema};

const PATH: &str = "/v1/responses";

fn ask(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "input": "hello", "instructions": "be brief", "max_output_tokens": 24, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

#[test]
fn a_response_is_the_same_whole_and_as_events() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({})));
    assert_eq!((&whole["object"], &whole["output"][0]["type"]), (&json!("response"), &json!("message")));
    let is_cut = whole["usage"]["output_tokens"] == 24;
    assert_eq!(whole["status"], if is_cut { "incomplete" } else { "completed" });
    let events = chat.events(PATH, ask(json!({"stream": true})));
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, text(&whole));
    let last = &events.last().unwrap()["response"];
    assert_eq!((text(last), &last["status"], &last["usage"]), (text(&whole), &whole["status"], &whole["usage"]));
    // As clients try a model.
    chat.ok(PATH, json!({"model": "tiny", "input": "", "max_output_tokens": 1}));
    chat.ok(PATH, json!({"model": "tiny", "input": [], "max_output_tokens": 1}));
}

#[test]
fn functions_are_called_and_formats_are_kept() {
    let chat = Chat::start();
    let tools =
        json!([{"type": "web_search"}, {"type": "function", "name": "find", "parameters": schema(), "strict": true}]);
    let asked = json!({"tools": tools, "tool_choice": "required", "max_output_tokens": 300});
    let whole = chat.ok(PATH, ask(asked.clone()));
    let call = &whole["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("find")), "{whole}");
    assert_fits(call["arguments"].as_str().unwrap());
    let mut streamed = ask(asked);
    streamed["stream"] = true.into();
    let events = chat.events(PATH, streamed);
    let done = events.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_fits(done["arguments"].as_str().unwrap());
    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "42"},
    ]);
    chat.ok(PATH, ask(json!({"input": input, "tools": tools})));
    let format = json!({"format": {"type": "json_schema", "name": "one", "schema": schema(), "strict": true}});
    assert_fits(text(&chat.ok(PATH, ask(json!({"text": format, "max_output_tokens": 200})))));
}

#[test]
fn what_needs_an_earlier_answer_is_refused() {
    let chat = Chat::start();
    for (more, message) in [
        (json!({"previous_response_id": "resp_1"}), "send the whole conversation"),
        (json!({"background": true}), "leave background out"),
        (json!({"input": [{"type": "item_reference", "id": "a"}]}), "'item_reference' are not read"),
        (json!({"input": [{"content": "a"}]}), "lacks its role"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "'input_image' is not read"),
    ] {
        chat.server.check_refused(PATH, &ask(more).to_string(), 400, message);
    }
}
