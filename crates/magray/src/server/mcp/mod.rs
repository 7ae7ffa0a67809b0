//! The model context protocol: what the server computes, and its GPUs, as tools for agents.
//! Knows no transport: `http` and `stdio` carry what is said here.

mod chat;
mod collections;
mod evaluate;
mod http;
mod lines;
mod schema;
mod stdio;
mod tool_access;
mod tools;

pub(super) use self::http::{__path_call, call, service};
pub(crate) use stdio::run_stdio;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::{router::tool::ToolRouter, tool::ToolCallContext},
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult, ContentBlock,
        CustomRequest, CustomResult, ErrorCode, Implementation, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    tool_handler,
};

use super::{
    app::App,
    errors::{Kind, Problem},
    keys::Access,
    request_record::RequestRecord,
    scope::RequestScope,
};

const INSTRUCTIONS: &str = "\
Embeddings, reranking, search in collections of documents and language models, computed on this machine, and control of the \
GPUs that compute them. Without a model's name \
the first that fits is used; list_models names them. A model that is not loaded is loaded by the first call that needs \
it, so nothing has to be prepared; offload_gpu and release_gpu give memory back to other programs.";

#[derive(Clone)]
pub(super) struct Tools {
    app: App,
    transport: Transport,
    router: ToolRouter<Self>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// They started this process, and may do what it may.
    Stdio,
    Http,
}

impl Tools {
    pub(super) fn new(app: App, transport: Transport) -> Self {
        Self { app, transport, router: Self::all_routes() }
    }

    fn all_routes() -> ToolRouter<Self> {
        Self::routes() + Self::collection_routes() + Self::chat_routes() + Self::evaluate_routes()
    }

    fn admit(&self, tool: &str, context: &RequestContext<RoleServer>) -> Result<(), Problem> {
        let access = match tool_access::of(tool) {
            Some(access) => access,
            None => return Err(Problem::new(Kind::Forbidden, "this tool is not available")),
        };
        // The route was checked before.
        if access != Access::Change || self.transport == Transport::Stdio {
            return Ok(());
        }
        let parts = context.extensions.get::<::http::request::Parts>();
        let Some((parts, scope)) = parts.and_then(|parts| Some((parts, parts.extensions.get::<RequestScope>()?)))
        else {
            return Err(Problem::new(Kind::Internal, "the caller of this tool is not known"));
        };
        self.app.admit(&self.app.live(), &parts.headers, access, scope.peer).map(drop)
    }
}

#[tool_handler(router = self.router)]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let server = Implementation::new("magray", env!("CARGO_PKG_VERSION")).with_title("magray");
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = request.name.clone();
        if !self.router.has_route(&tool) {
            let tool: String = tool.chars().take(100).collect();
            let message = format!("there is no tool '{tool}' for tools/call: tools/list names them");
            return Err(ErrorData::invalid_params(message, None));
        }
        if let Err(problem) = self.admit(&tool, &context) {
            return Ok(CallToolResult::error(vec![ContentBlock::text(problem.message)]).into());
        }
        let cancelled = context.ct.clone();
        // The protocol runs tools in tasks of its own; they still belong to a request.
        let parts = context.extensions.get::<::http::request::Parts>();
        let scope = parts.and_then(|parts| parts.extensions.get::<RequestScope>());
        let record = scope.map_or_else(RequestRecord::current, |scope| scope.record.clone());
        let call = record.scope(self.router.call(ToolCallContext::new(self, request, context)));
        tokio::select! {
            done = call => done.map(|done| naming(&tool, done)),
            // The client has left, and its work is withdrawn.
            () = cancelled.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(no_method(&request.method))
    }

    // The library would answer these with empty lists, and a server may not answer what it does not declare.

    async fn list_prompts(&self, _: Page, _: RequestContext<RoleServer>) -> Result<ListPromptsResult, ErrorData> {
        Err(no_method("prompts/list"))
    }

    async fn list_resources(&self, _: Page, _: RequestContext<RoleServer>) -> Result<ListResourcesResult, ErrorData> {
        Err(no_method("resources/list"))
    }

    async fn list_resource_templates(
        &self,
        _: Page,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(no_method("resources/templates/list"))
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(no_method("completion/complete"))
    }
}

type Page = Option<PaginatedRequestParams>;

fn no_method(method: &str) -> ErrorData {
    // A name is the client's own text, of any length.
    let method: String = method.chars().take(100).collect();
    let message = format!("there is no method '{method}': this server has tools, by tools/list and tools/call");
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None)
}

/// Names the tool where its arguments did not fit: the library does not.
fn naming(tool: &str, done: CallToolResponse) -> CallToolResponse {
    const UNFIT: &str = "failed to deserialize parameters: ";
    let CallToolResponse::Complete(result) = &done else { return done };
    let told = result.content.first().and_then(|content| content.as_text()).map(|text| text.text.as_str());
    match told.filter(|_| result.is_error == Some(true)).and_then(|told| told.strip_prefix(UNFIT)) {
        Some(reason) => {
            let message = format!("the parameters of the tool '{tool}' do not fit: {reason}");
            CallToolResult::error(vec![ContentBlock::text(message)]).into()
        }
        None => done,
    }
}
