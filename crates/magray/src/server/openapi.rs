//! All routes and the document that describes them, made from the same list.
//! A route that is not described here does not exist.

use axum::Router;
use http::{HeaderName, HeaderValue, Method, header};
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, CorsLayer},
};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::SwaggerUi;

use super::{
    apis, errors, gate, health,
    hosts::OwnNames,
    keys::Access,
    mcp, metrics,
    origin::Origins,
    site::{Parts, Site},
    state::App,
};
use crate::config::ServerSettings;

/// The head of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "magray",
        description = "Embeddings and reranking on CPU and GPU, through the APIs that clients already speak.",
        license(name = "MIT OR Apache-2.0"),
    ),
    modifiers(&Secured),
    tags(
        (name = "openai", description = "What OpenAI's clients ask."),
        (name = "tei", description = "What clients of text-embeddings-inference ask."),
        (name = "cohere", description = "What Cohere's clients ask."),
        (name = "ollama", description = "What Ollama's clients ask."),
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
        document.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// All routes.
struct Described {
    open: Router<App>,
    guarded: Router<App>,
    /// What each path asks of its callers, whatever their method.
    paths: Vec<(String, Option<Access>)>,
    document: utoipa::openapi::OpenApi,
}

/// All routes, by what they ask of their callers.
fn described(app: &App) -> Described {
    let open = OpenApiRouter::new()
        .routes(routes!(health::health))
        .routes(routes!(health::ping))
        .routes(routes!(health::live));
    let users = OpenApiRouter::new()
        .merge(apis::openai::routes())
        .merge(apis::tei::routes())
        .merge(apis::cohere::routes())
        .merge(apis::ollama::routes())
        .merge(mcp::routes(app))
        .merge(apis::gpu::reading_routes())
        .routes(routes!(metrics::metrics));
    let admins = OpenApiRouter::new().merge(apis::gpu::moving_routes()).merge(apis::admin::routes());
    let mut document = Document::openapi();
    let mut paths = Vec::new();
    let mut describe = |routes: OpenApiRouter<App>, access: Option<Access>| {
        let (router, described) = routes.split_for_parts();
        paths.extend(described.paths.paths.keys().map(|path| (path.clone(), access)));
        document.merge(described);
        router
    };
    let open = describe(open, None);
    let guarded = describe(users, Some(Access::User)).merge(describe(admins, Some(Access::Admin)));
    Described { open, guarded, paths, document }
}

/// The whole site.
pub(crate) fn site(app: &App, settings: &ServerSettings) -> Site {
    let Described { open, guarded, mut paths, document } = described(app);
    let open = open.merge(SwaggerUi::new("/docs").url("/openapi.json", document));
    // Not in the document; without these they would count as paths that lead nowhere.
    paths.extend(["/docs", "/docs/", "/docs/{*rest}", "/openapi.json"].map(|path| (path.to_owned(), None)));
    let answering = |router: Router<App>| {
        let router = router.fallback(gate::no_route).method_not_allowed_fallback(gate::wrong_method);
        router.layer(CatchPanicLayer::custom(errors::panicked)).with_state(app.clone())
    };
    Site::new(Parts {
        app: app.clone(),
        own_names: OwnNames::new(&settings.host),
        origins: Origins::new(&settings.cors_origins),
        cors: cors(&settings.cors_origins),
        paths,
        open: answering(open),
        guarded: answering(guarded),
    })
}

/// Which web pages may ask; `None`: those of no other origin.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = match origins {
        [] => return None,
        [all] if all == "*" => CorsLayer::new().allow_origin(tower_http::cors::Any),
        some => {
            // The settings have been checked.
            let known: Vec<HeaderValue> = some.iter().filter_map(|origin| origin.parse().ok()).collect();
            CorsLayer::new().allow_origin(known)
        }
    };
    // Clients send headers of their own; which, a server cannot know.
    let layer = layer.allow_methods([Method::GET, Method::POST]).allow_headers(AllowHeaders::mirror_request());
    Some(layer.expose_headers(TOLD))
}

/// Headers of answers that are worth reading.
const TOLD: [HeaderName; 7] = [
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("x-magray-device"),
    HeaderName::from_static("x-magray-fallback"),
    HeaderName::from_static("x-magray-truncated"),
    HeaderName::from_static("x-request-id"),
];
