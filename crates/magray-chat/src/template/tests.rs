//! Tests of bounds, of errors, and of what is found out about a template.

use super::*;
use crate::conversation::Tool;

fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::compile(&TemplateSources { default: Some(source.to_owned()), ..TemplateSources::default() })
}

fn said(messages: &[(Role, &str)]) -> Conversation {
    let messages = messages.iter().map(|(role, text)| Message::new(*role, *text)).collect();
    Conversation { messages, ..Conversation::default() }
}

fn render(source: &str) -> Result<String, TemplateError> {
    compile(source)?.render(&said(&[(Role::User, "hi")]), &Opening::default())
}

#[test]
fn a_template_without_end_is_stopped() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert_eq!(render(loops), Err(TemplateError::Endless));
}

#[test]
fn a_template_that_writes_without_end_is_stopped() {
    let writes = "{% set x = 'x' * 100000 %}{% for a in range(9999) %}{{ x }}{% endfor %}";
    assert_eq!(render(writes), Err(TemplateError::PromptTooLong));
}

#[test]
fn a_macro_that_calls_itself_is_stopped() {
    let calls = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(matches!(render(calls), Err(TemplateError::Failed { .. })), "{:?}", render(calls));
}

#[test]
fn a_broken_template_is_named_with_its_line() {
    let error = compile("one\n{% if %}").expect_err("it is broken");
    assert!(matches!(error, TemplateError::Syntax { line: 2, .. }), "{error:?}");
    assert_eq!(compile(&"x".repeat(SOURCE_BYTES_MAX + 1)).err(), Some(TemplateError::TooLarge));
    assert_eq!(ChatTemplate::compile(&TemplateSources::default()).err(), Some(TemplateError::Missing));
    assert!(matches!(render("\n\n{{ messages.x.y }}"), Err(TemplateError::Failed { line: 3, .. })));
}

#[test]
fn a_refusal_is_the_requests_fault() {
    let error = render("{{ raise_exception('No: ' ~ messages|length) }}").expect_err("it refuses");
    assert_eq!(error, TemplateError::Refused("No: 1".to_owned()));
    assert!(error.is_of_the_request());
}

#[test]
fn instructions_are_shown_by_templates_without_a_place_for_them() {
    let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.content }}]{% endfor %}";
    let forgets = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}";
    for source in [refuses, forgets] {
        let template = compile(source).expect("it compiles");
        let conversation = said(&[(Role::System, "Be brief."), (Role::User, "Why?")]);
        assert_eq!(template.render(&conversation, &Opening::default()).as_deref(), Ok("[Be brief.\n\nWhy?]"));
    }
}

#[test]
fn contents_are_lists_where_the_template_wants_lists() {
    let source = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}";
    assert_eq!(render(source).as_deref(), Ok("[hi]"));
}

#[test]
fn tools_are_described_where_the_template_has_no_place_for_them() {
    let template = compile("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").expect("it compiles");
    assert!(!template.reads_tools());
    let mut conversation = said(&[(Role::User, "Rain?")]);
    conversation.tools =
        vec![Tool { name: "weather".into(), description: None, parameters: json!({"type": "object"}) }];
    let prompt = template.render(&conversation, &Opening::default()).expect("it renders");
    assert!(prompt.starts_with("<system>") && prompt.contains("\"name\": \"weather\""), "{prompt}");
}

#[test]
fn a_template_for_tools_is_used_where_there_are_tools() {
    let mut sources = TemplateSources::default();
    sources.named.insert("default".into(), "plain".into());
    sources.named.insert("tool_use".into(), "tools: {{ tools | length }}".into());
    let template = ChatTemplate::compile(&sources).expect("it compiles");
    let mut conversation = said(&[(Role::User, "Rain?")]);
    assert_eq!(template.render(&conversation, &Opening::default()).as_deref(), Ok("plain"));
    conversation.tools = vec![Tool { name: "f".into(), description: None, parameters: json!({}) }];
    assert_eq!(template.render(&conversation, &Opening::default()).as_deref(), Ok("tools: 1"));
}

#[test]
fn variables_of_the_caller_reach_the_template() {
    let template = compile("{{ tone }}{{ enable_thinking }}{{ x.y[1] }}").expect("it compiles");
    assert!(template.thinks());
    let mut conversation = said(&[]);
    conversation.thinks = Some(false);
    conversation.extra.insert("tone".into(), json!("warm"));
    conversation.extra.insert("x".into(), json!({"y": [1, 2]}));
    assert_eq!(template.render(&conversation, &Opening::default()).as_deref(), Ok("warmFalse2"));
    conversation.extra.insert("messages".into(), json!([]));
    assert_eq!(template.render(&conversation, &Opening::default()), Err(TemplateError::Reserved("messages".into())));
}
