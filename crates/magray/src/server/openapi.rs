//! The OpenAPI document: each handler's own description, and what the table of routes says of it.
//! Describes no route that is not in the table.

use utoipa::{
    Modify, OpenApi,
    openapi::{
        ContentBuilder, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder, Schema, Type,
        path::{HttpMethod, Operation, Parameter, ParameterBuilder, ParameterIn, Paths},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use super::{
    checks::PRIORITY_HEADER,
    errors::{AnthropicError, CohereError, OllamaError, OpenAiError, PlainError, QdrantError, Shape, TeiError},
    examples,
    keys::Access,
    lines::LINES,
    routes::{Api, Route},
};

/// The head of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "magray",
        description = "Embeddings, reranking and chat on CPU and GPU, through the APIs that clients already speak.",
        license(name = "MIT OR Apache-2.0"),
    ),
    modifiers(&Secured),
    components(schemas(AnthropicError, CohereError, OllamaError, OpenAiError, PlainError, QdrantError, TeiError)),
    tags(
        (name = "openai", description = "What OpenAI's clients ask."),
        (name = "tei", description = "What clients of text-embeddings-inference ask."),
        (name = "cohere", description = "What Cohere's clients ask."),
        (name = "anthropic", description = "What Anthropic's clients ask."),
        (name = "ollama", description = "What Ollama's clients ask."),
        (name = "qdrant", description = "What Qdrant's clients ask."),
        (name = "open_inference", description = "What clients of Triton and KServe ask: the v2 protocol."),
        (name = "mcp", description = "What agents ask, by the model context protocol."),
        (name = "gpu", description = "Where the models are, and how they come and go."),
        (name = "admin", description = "The server itself."),
        (name = "health", description = "Whether it works, and how well."),
    )
)]
struct Document;

struct Secured;

impl Modify for Secured {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme(KEY, scheme);
    }
}

const KEY: &str = "key";

/// The document without routes.
pub(super) fn head() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// Adds a route: what its handler says, with its section, its key, how requests are refused, and an example that can be sent
/// where this model is served.
pub(super) fn describe(
    document: &mut utoipa::openapi::OpenApi,
    (route, model): (&Route, &str),
    schemas: Vec<(String, RefOr<Schema>)>,
    described: Paths,
) {
    let item = described.paths.into_values().next().unwrap_or_default();
    let (method, operation) = match route.method {
        http::Method::GET => (HttpMethod::Get, item.get),
        http::Method::DELETE => (HttpMethod::Delete, item.delete),
        http::Method::PUT => (HttpMethod::Put, item.put),
        http::Method::PATCH => (HttpMethod::Patch, item.patch),
        _ => (HttpMethod::Post, item.post),
    };
    let Some(mut operation) = operation else { unreachable!("the handler of {} has another method", route.path) };
    operation.tags = Some(vec![route.api.tag().to_owned()]);
    if route.access != Access::Open {
        operation.security = Some(vec![SecurityRequirement::new(KEY, [""; 0]), SecurityRequirement::default()]);
    }
    let takes_forms = route.access == Access::Change && route.api != Api::Ollama && !route.is_of_collections();
    if let (true, Some(RefOr::T(body))) = (takes_forms, &mut operation.request_body) {
        // Fields come as JSON or as a form of either kind.
        for form in ["application/x-www-form-urlencoded", "multipart/form-data"] {
            body.content.extend(body.content.values().next().map(|content| (form.to_owned(), content.clone())));
        }
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && let Some(RefOr::T(content)) = body.content.get_mut("application/json")
    {
        content.example = examples::body(route.path, model);
    }
    if route.is_of_collections() {
        operation.parameters.get_or_insert_default().extend(path_names(route.path).map(RefOr::from));
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(own) = parameter {
            let example = examples::path_part(&own.name, route.path, model);
            let described = ParameterBuilder::new()
                .name(own.name.clone())
                .parameter_in(own.parameter_in.clone())
                .description(own.description.clone())
                .required(own.required.clone())
                .schema(own.schema.clone());
            *parameter = described.example(example).build().into();
        }
    }
    if TAKES_LINES.contains(&route.path) {
        describe_lines(&mut operation);
    }
    if route.access == Access::Compute {
        operation.parameters.get_or_insert_default().push(priority_header().into());
    }
    let has_body = operation.request_body.is_some() && route.api != Api::Mcp;
    // OpenAI and Qdrant have one status for all that is wrong with a request.
    let answers_400 = matches!(route.api, Api::OpenAi | Api::Anthropic | Api::Qdrant);
    let is_of_collections = route.is_of_collections();
    for (status, when, is_used) in [
        (
            400,
            "The body is no JSON, a field is wrong, or it is too much for one request; no such priority.",
            has_body && answers_400,
        ),
        (
            400,
            "The body is no JSON, or without any text where the API has this status for it; no such priority.",
            has_body,
        ),
        (401, "There is no key, or a wrong one.", route.access != Access::Open),
        (403, "The key is not an administrator's.", route.access == Access::Change),
        (403, "The key may not ask for a high priority.", route.access == Access::Compute),
        (404, "There is no such collection, point or model.", is_of_collections),
        (404, "There is no such model.", has_body),
        (408, "The body came too slowly.", has_body),
        (413, "It is too much for one request.", has_body),
        (415, "The content-encoding is neither gzip nor zstd.", has_body),
        (422, "A field is wrong, or the model does something else.", has_body && !answers_400),
        (429, "There is too much to do, or the key asked too often: see Retry-After.", route.access != Access::Open),
        (400, "A name in the path is no text, or a field of the query is wrong.", is_of_collections),
        (503, "No device computes, the collections cannot be opened, or not in time.", is_of_collections),
        (507, "The disk is full.", is_of_collections && route.access == Access::Change),
        (503, "No device computes, or not in time.", has_body),
    ] {
        if is_used {
            let refused = || refusal(when, route.api.shape()).into();
            operation.responses.responses.entry(u16::to_string(&status)).or_insert_with(refused);
        }
    }
    document.paths.add_path_operation(route.path, vec![method], operation);
    document.components.get_or_insert_default().schemas.extend(schemas);
}

/// The names in a path, as parameters.
fn path_names(path: &str) -> impl Iterator<Item = Parameter> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let named = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        named.schema(Some(text)).build()
    })
}

/// Routes that take texts line by line too.
const TAKES_LINES: [&str; 2] = ["/v1/embeddings", "/embed"];

fn describe_lines(operation: &mut Operation) {
    let lines = |example: &str| {
        let schema = ObjectBuilder::new().schema_type(Type::String).build();
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example.into())).build();
        (LINES.to_owned(), RefOr::T(content))
    };
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.extend([lines("\"A cat sits by the river.\"\n{\"input\":\"The boat waits.\"}\n")]);
    }
    if let Some(RefOr::T(answer)) = operation.responses.responses.get_mut("200") {
        let example = "{\"index\":0,\"embedding\":[0.1,-0.2]}\n{\"index\":1,\"error\":{\"message\":\"...\",\"code\":\"invalid\"}}\n";
        answer.content.extend([lines(example)]);
    }
}

fn priority_header() -> Parameter {
    let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["high", "normal", "low"])).build();
    ParameterBuilder::new()
        .name(PRIORITY_HEADER)
        .parameter_in(ParameterIn::Header)
        .description(Some("Which of several waiting requests goes first; without it, normal."))
        .required(Required::False)
        .schema(Some(words))
        .build()
}

fn refusal(when: &str, shape: Shape) -> ResponseBuilder {
    let error = match shape {
        Shape::OpenAi => "OpenAiError",
        Shape::Tei => "TeiError",
        Shape::Cohere => "CohereError",
        Shape::Ollama => "OllamaError",
        Shape::Anthropic => "AnthropicError",
        Shape::Qdrant => "QdrantError",
        Shape::Plain => "PlainError",
    };
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(error))).build();
    ResponseBuilder::new().description(when).content("application/json", content)
}
