//! OpenAI's chats and completions: whole and streamed, constrained, with tools, and what is told of tokens.

use serde_json::{Value, json};

use super::{Chat, assert_fits, schema};
use crate::rig::{Setup, wait_for, write_generator};

const PATH: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0, "seed": 1,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn content(events: &[Value], index: usize) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices.filter(|choice| choice["index"] == index).filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "Does it.", "parameters": schema()}})
}

#[test]
fn an_answer_is_the_same_whole_and_streamed() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({})));
    let choice = &whole["choices"][0];
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
    assert_eq!((&choice["index"], &choice["message"]["role"]), (&json!(0), &json!("assistant")));
    assert_eq!(choice["logprobs"], Value::Null);
    let usage = &whole["usage"];
    let tokens = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(tokens("prompt_tokens"), "<|user|>hello<|assistant|>".len() as u64);
    assert_eq!(tokens("total_tokens"), tokens("prompt_tokens") + tokens("completion_tokens"));
    let expected = if tokens("completion_tokens") == 24 { "length" } else { "stop" };
    assert_eq!(choice["finish_reason"], expected);

    let events = chat.events(PATH, ask(json!({"stream": true, "stream_options": {"include_usage": true}})));
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(content(&events, 0), choice["message"]["content"].as_str().unwrap());
    let last = &events[events.len() - 2]["choices"][0];
    assert_eq!((&last["finish_reason"], &last["delta"]), (&choice["finish_reason"], &json!({})));
    let told = events.last().unwrap();
    assert_eq!((&told["choices"], &told["usage"]), (&json!([]), usage));
    assert!(events[..events.len() - 1].iter().all(|event| event["usage"].is_null() && event["id"] == told["id"]));
    let quiet = chat.events(PATH, ask(json!({"stream": true})));
    assert!(quiet.iter().all(|event| event.get("usage").is_none() && event["choices"].as_array().unwrap().len() == 1));
    let raw = chat.server.post(PATH, &ask(json!({"stream": true})).to_string()).ok();
    assert!(super::unchunked(&raw).ends_with("data: [DONE]\n\n"));
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let chat = Chat::start();
    let drawn = json!({"n": 3, "temperature": 1.2, "seed": 7});
    let whole = chat.ok(PATH, ask(drawn.clone()));
    let texts: Vec<&str> =
        whole["choices"].as_array().unwrap().iter().map(|one| one["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 3);
    assert_ne!(texts[0], texts[1]);
    let second = chat.ok(PATH, ask(json!({"temperature": 1.2, "seed": 8})));
    assert_eq!(second["choices"][0]["message"]["content"], texts[1]);
    let mut streamed = ask(drawn);
    streamed["stream"] = true.into();
    let events = chat.events(PATH, streamed);
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(content(&events, index), *text);
    }
}

#[test]
fn an_answer_is_json_of_its_schema() {
    let chat = Chat::start();
    let format = json!({"type": "json_schema", "json_schema": {"name": "one", "strict": true, "schema": schema()}});
    for seed in 0..5 {
        let asked = json!({"response_format": format, "temperature": 1.0, "seed": seed, "max_tokens": 200});
        let whole = chat.ok(PATH, ask(asked));
        assert_fits(whole["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
    let object = chat.ok(PATH, ask(json!({"response_format": {"type": "json_object"}})));
    assert!(object["choices"][0]["message"]["content"].as_str().unwrap().trim_start().starts_with('{'));
    let events = chat.events(PATH, ask(json!({"response_format": format, "stream": true, "max_tokens": 200})));
    assert_fits(&content(&events, 0));
    let text = json!({"model": "tiny", "prompt": "x", "response_format": format, "max_tokens": 200});
    assert_fits(chat.ok("/v1/completions", text)["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn a_call_that_is_wanted_is_made() {
    let chat = Chat::start();
    let tools = json!([tool("look"), tool("find")]);
    let named = json!({"type": "function", "function": {"name": "find"}});
    let called = |choice: Value, more: Value| {
        let mut asked = ask(json!({"tools": tools, "tool_choice": choice, "max_tokens": 300, "temperature": 1.0}));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    for seed in 0..4 {
        let whole = chat.ok(PATH, called(json!("required"), json!({"seed": seed})));
        let choice = &whole["choices"][0];
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        assert!(["look", "find"].contains(&call["function"]["name"].as_str().unwrap()), "{whole}");
        assert_fits(call["function"]["arguments"].as_str().unwrap());
        assert!(call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function");
    }
    let whole = chat.ok(PATH, called(named.clone(), json!({})));
    assert_eq!(whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "find");

    let events = chat.events(PATH, called(named, json!({"stream": true})));
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert!(deltas.iter().all(|delta| delta["index"] == 0));
    assert_eq!((&deltas[0]["function"]["name"], &deltas[0]["type"]), (&json!("find"), &json!("function")));
    assert!(deltas[0]["id"].is_string() && deltas[1..].iter().all(|delta| delta.get("id").is_none()));
    let arguments: String = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    assert_fits(&arguments);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // The whole round: the call and its result are part of the next prompt.
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    let messages = json!([
        {"role": "developer", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "42"},
    ]);
    let after = chat.ok(PATH, ask(json!({"messages": messages, "tools": tools, "tool_choice": "none"})));
    assert!(after["choices"][0]["message"].get("tool_calls").is_none());
}

#[test]
fn stops_end_an_answer_and_thoughts_stand_apart() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({})));
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    let cut = chat.ok(PATH, ask(json!({"stop": stop})));
    let found = cut["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with(found) && !found.contains(&stop), "{found:?} of {text:?} before {stop:?}");
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    // The prompt opens the block of thoughts, and the model never closes it.
    let thinking = chat.ok(PATH, ask(json!({"chat_template_kwargs": {"enable_thinking": true}})));
    let message = &thinking["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{thinking}");
    assert_eq!(message["content"], "");
    assert!(thinking["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let events = chat.events(PATH, ask(json!({"chat_template_kwargs": {"enable_thinking": true}, "stream": true})));
    let thoughts: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str()).collect();
    assert_eq!(thoughts, message["reasoning_content"].as_str().unwrap());
}

#[test]
fn how_likely_tokens_were_is_told() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({"logprobs": true, "top_logprobs": 3})));
    let told = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(told.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    for one in told {
        assert_eq!(one["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(one["bytes"], one["top_logprobs"][0]["bytes"], "the likeliest was taken");
        assert!(one["logprob"].as_f64().unwrap() <= 0.0 && one["token"].is_string());
    }
    let events = chat.events(PATH, ask(json!({"logprobs": true, "top_logprobs": 3, "stream": true})));
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, told);
    let body = json!({"model": "tiny", "prompt": ["ab", "cd"], "echo": true, "logprobs": 2, "max_tokens": 5});
    let two = chat.ok("/v1/completions", body);
    assert_eq!(two["object"], "text_completion");
    for (index, prompt) in ["ab", "cd"].iter().enumerate() {
        let choice = &two["choices"][index];
        assert!(choice["text"].as_str().unwrap().starts_with(prompt) && choice["index"] == index, "{two}");
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), logprobs["token_logprobs"].as_array().unwrap().len());
        assert_eq!(logprobs["text_offset"][0], 2);
    }
}

#[test]
fn a_completion_goes_on_with_texts_and_tokens() {
    let chat = Chat::start();
    let ask = |more: Value| {
        let mut body = json!({"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = chat.ok("/v1/completions", ask(json!({})));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let ids: Vec<u32> = chat.server.post("/tokenize", r#"{"inputs":"hello","model":"tiny"}"#).ok().json()[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].as_u64().unwrap() as u32)
        .collect();
    assert_eq!(chat.ok("/v1/completions", ask(json!({"prompt": ids})))["choices"][0]["text"], text);
    let events = chat.events("/v1/completions", ask(json!({"stream": true})));
    let streamed: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let biased = chat.ok("/v1/completions", ask(json!({"logit_bias": {"65": 1000, "66": -1000}, "max_tokens": 4})));
    assert_eq!(
        biased["choices"][0]["text"],
        chat.server.post("/decode", r#"{"ids":[65,65,65,65],"model":"tiny"}"#).ok().json()[0]
    );
}

#[test]
fn a_client_that_leaves_ends_its_answer() {
    let chat = Chat::start();
    let body = ask(json!({"stream": true, "max_tokens": 6000, "logit_bias": {"256": -1000}}));
    let request = chat.server.request("POST", PATH).header("content-type", "application/json").body(body.to_string());
    let mut chunks = super::Chunks::of(request.begin());
    assert!(chunks.next().is_some() && chunks.next().is_some());
    let requests = || {
        let page = chat.server.get("/metrics").ok();
        let line = page.text().lines().find(|line| line.starts_with("magray_queue_requests ")).unwrap().to_owned();
        line.ends_with(" 0")
    };
    assert!(!requests());
    drop(chunks);
    wait_for("the answer of a client that left ends", requests);
}

#[test]
fn what_is_wrong_is_told_before_the_first_token() {
    let chat = Chat::start();
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]);
    for (more, status, message) in [
        (json!({"messages": []}), 400, "no message"),
        (json!({"messages": image}), 400, "'image_url' is not read"),
        (json!({"messages": [{"role": "king", "content": "hi"}]}), 400, "no role 'king'"),
        (json!({"model": "gpt-4"}), 404, "no model 'gpt-4'"),
        (json!({"temperature": -1}), 400, "temperature must be from 0"),
        (json!({"n": 1000000}), 400, "answers were asked for"),
        (json!({"n": 0}), 400, "0 answers"),
        (json!({"max_tokens": 1000000000}), 400, "the model takes 8192 in all"),
        (json!({"max_tokens": 0}), 400, "at least one token"),
        (json!({"top_logprobs": 3}), 400, "needs logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), 400, "from 0 to 20"),
        (json!({"logit_bias": {"a": 1}}), 400, "token ids"),
        (json!({"stop": vec!["a"; 100]}), 400, "100 texts"),
        (json!({"response_format": {"type": "xml"}}), 400, "json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "obj"}}}}),
            400,
            "cannot be used",
        ),
        (json!({"tool_choice": "required"}), 400, "there is no tool"),
        (
            json!({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}),
            400,
            "no tool 'b'",
        ),
        (json!({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}), 400, "functions"),
        (json!({"chat_template_kwargs": {"messages": 1}}), 400, "must not set 'messages'"),
        (json!({"messages": "hello"}), 400, "does not fit"),
    ] {
        for is_streamed in [false, true] {
            let mut body = ask(more.clone());
            body["stream"] = is_streamed.into();
            chat.server.check_refused(PATH, &body.to_string(), status, message);
        }
    }
    let embedder = Setup::embedder().start();
    embedder.check_refused(PATH, &ask(json!({"model": "bert"})).to_string(), 400, "generates no text");
    let folder = tempfile::tempdir().unwrap();
    write_generator(&folder.path().join("bare"), false);
    let path = folder.path().join("bare");
    let bare = Setup::new(&["--device", "cpu", "--model", path.to_str().unwrap()]).start();
    bare.check_refused(PATH, &ask(json!({"model": "bare"})).to_string(), 400, "no chat template");
    bare.post("/v1/completions", r#"{"model":"bare","prompt":"a","max_tokens":2}"#).ok();
}
