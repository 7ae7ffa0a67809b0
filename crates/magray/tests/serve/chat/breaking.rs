//! Streams that break off after their first tokens: each API tells it in its own shape, the stream ends, and the server goes on.

use std::thread;

use serde_json::{Value, json};

use super::{Chat, unchunked};

/// More than any worker has computed when it dies.
const TOKENS: usize = 2_000;

/// What is asked, and a token that the answer has after a while and the prompt has not.
struct Poisoned {
    message: String,
    token: u64,
}

fn chat(faults: &str) -> Chat {
    let args = ["--device", "require-gpu", "--simulated-gpus", "1"];
    Chat::with(&args, |setup| setup.env("MAGRAY_FAULTS", faults))
}

impl Poisoned {
    /// Tries messages until one is answered at length and by a character that is not in it.
    fn find() -> Self {
        let calm = Chat::start();
        for number in 0..100 {
            let message = format!("hello {number}");
            let asked = json!({"prompt": prompt(&message), "max_tokens": TOKENS, "temperature": 0});
            let answer = calm.ok("/v1/completions", asked);
            let text = answer["choices"][0]["text"].as_str().unwrap();
            let is_new = |c: &char| c.is_ascii_graphic() && !prompt(&message).contains(*c);
            let found = text.char_indices().find(|(at, c)| *at >= 2 && is_new(c)).filter(|(at, _)| *at < 40);
            if let (Some((_, c)), true) = (found, answer["usage"]["completion_tokens"] == TOKENS) {
                let read = calm.ok("/tokenize", json!({"content": c.to_string()}));
                return Self { message, token: read["tokens"][0].as_u64().unwrap() };
            }
        }
        panic!("no message is answered at length");
    }

    /// A worker dies with each batch that holds the token. By the 60th batch the answer has it: a worker that dies then leaves its
    /// successor with a prompt that ends it, too, and what ended two workers is given up.
    fn faults(&self) -> String {
        format!("crash@batch=60, poison@id={}", self.token)
    }

    fn body(&self, path: &str) -> String {
        let messages = json!([{"role": "user", "content": self.message}]);
        let options = json!({"num_predict": TOKENS, "temperature": 0});
        let body = match path {
            "/v1/completions" => {
                json!({"prompt": prompt(&self.message), "max_tokens": TOKENS, "stream": true, "temperature": 0})
            }
            "/v1/responses" => {
                json!({"input": messages, "max_output_tokens": TOKENS, "stream": true, "temperature": 0})
            }
            "/api/chat" => json!({"messages": messages, "options": options}),
            "/api/generate" => json!({"prompt": prompt(&self.message), "raw": true, "options": options}),
            _ => json!({"messages": messages, "max_tokens": TOKENS, "stream": true, "temperature": 0}),
        };
        body.to_string()
    }
}

/// As the template of the tiny model has it.
fn prompt(message: &str) -> String {
    format!("<|user|>{message}<|assistant|>")
}

/// The JSON of a line or an event.
fn read(part: &str) -> Value {
    let data = part.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(part);
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {part}"))
}

#[test]
fn an_error_after_the_first_token_has_the_shape_of_its_api() {
    let paths =
        ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"];
    let poisoned = &Poisoned::find();
    thread::scope(|scope| {
        for path in paths {
            scope.spawn(move || {
                let chat = chat(&poisoned.faults());
                let text = unchunked(&chat.server.post(path, &poisoned.body(path)).ok());
                let separator = if path.starts_with("/api/") { "\n" } else { "\n\n" };
                let events: Vec<Value> = text.split(separator).filter(|part| !part.is_empty()).map(read).collect();
                let (last, before) = events.split_last().unwrap();
                let told = |field: &str| before.iter().filter(|event| event.pointer(field).is_some()).count();
                let (message, tokens) = match path {
                    "/v1/messages" => {
                        assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
                        (&last["error"]["message"], told("/delta/text"))
                    }
                    "/v1/responses" => {
                        assert_eq!(
                            (&last["type"], &last["response"]["status"]),
                            (&json!("response.failed"), &json!("failed"))
                        );
                        assert_eq!(last["sequence_number"], before.len());
                        assert_eq!(last["response"]["error"]["code"], "server_error");
                        (&last["response"]["error"]["message"], told("/delta"))
                    }
                    "/api/chat" => (&last["error"], told("/message/content")),
                    "/api/generate" => (&last["error"], told("/response")),
                    _ => {
                        let error = &last["error"];
                        assert_eq!(
                            (&error["type"], &error["code"]),
                            (&json!("server_error"), &json!("internal")),
                            "{last}"
                        );
                        (&error["message"], told("/choices/0/text") + told("/choices/0/delta/content"))
                    }
                };
                assert!(tokens > 1, "{path}: {before:?}");
                assert!(message.as_str().is_some_and(|message| message.contains("worker")), "{path}: {last}");
                // It is not the server's end, and what comes next is whole.
                let next = json!({"prompt": "hello", "max_tokens": 1});
                assert_eq!(chat.ok("/v1/completions", next)["usage"]["prompt_tokens"], 5, "{path}");
            });
        }
    });
}
