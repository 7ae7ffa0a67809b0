//! Finds what answers a request by its path: the handlers of that path and no others.
//! Checks nothing: `checks` does, by the access that the table declares.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Extension, Router as Handlers, routing::MethodRouter};
use http::Method;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_swagger_ui::SwaggerUi;

use super::{
    app::App,
    errors::{self, Kind, Problem},
    keys::Access,
    mcp,
    metrics::RouteCounters,
    models::Does,
    openapi, page,
    routes::{Api, DEMO_ROUTES, DOCUMENT_PATH, PAGE_PATH, PAGES, ROUTES, Route},
};

pub(crate) struct Router {
    endpoints: matchit::Router<Arc<Endpoint>>,
    /// What answers paths that are in no table, one for each API.
    unknown: [Arc<Endpoint>; Api::ALL.len()],
}

pub(crate) struct Endpoint {
    api: Api,
    access: Vec<(Method, Access)>,
    is_generating: bool,
    counters: RouteCounters,
    handlers: Handlers,
}

impl Router {
    pub(super) fn new(app: &App) -> Self {
        let mut by_path: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
        let of_demo = if app.takes_faults() { DEMO_ROUTES } else { &[] };
        for route in ROUTES.iter().chain(of_demo) {
            by_path.entry(route.path).or_default().push(route);
        }
        let mut document = openapi::head();
        let model = app.models().first().map(|first| app.models().get(first).name.clone()).unwrap_or_default();
        let does_any = |does: &[Does]| app.models().iter().any(|(_, model)| does.contains(&model.does));
        let (has_classes, generates) = (does_any(&[Does::Rank, Does::Classify]), does_any(&[Does::Generate]));
        let mut endpoints = matchit::Router::new();
        let mut insert = |path: &str, endpoint: Endpoint| {
            let inserted = endpoints.insert(path, Arc::new(endpoint));
            inserted.unwrap_or_else(|error| unreachable!("every path is in the table once: {error}"));
        };
        for (path, routes) in by_path {
            let mut methods = MethodRouter::new();
            for route in &routes {
                let (schemas, paths, handler) = (route.handler)();
                // The document promises nothing that no model here does, and nothing of the page's own, which may change with it.
                let is_done = (route.path != "/predict" || has_classes) && (generates || !route.needs_generator());
                if is_done && route.api != Api::Ui {
                    openapi::describe(&mut document, (route, &model), schemas, paths);
                }
                methods = methods.merge(handler);
            }
            let api = routes[0].api;
            if api == Api::Mcp {
                methods = methods.layer(Extension(mcp::service(app)));
            }
            let access = routes.iter().map(|route| (route.method.clone(), route.access)).collect();
            let handlers = answering(Handlers::new().route(path, methods), app);
            let is_generating = routes.iter().any(|route| route.is_generating());
            insert(path, Endpoint { api, access, is_generating, counters: RouteCounters::new(path), handlers });
        }
        let pages = Handlers::from(SwaggerUi::new(PAGE_PATH).url(DOCUMENT_PATH, document));
        let pages = answering(pages, app);
        for path in PAGES {
            insert(path, Endpoint::open(Api::Docs, path, pages.clone()));
        }
        let files = answering(page::handlers(), app);
        for path in page::PATHS {
            insert(path, Endpoint::open(Api::Ui, path, files.clone()));
        }
        let nothing = answering(Handlers::new(), app);
        let unknown = Api::ALL.map(|api| Arc::new(Endpoint::open(api, "none", nothing.clone())));
        Self { endpoints, unknown }
    }

    pub(super) fn find(&self, path: &str) -> &Arc<Endpoint> {
        self.endpoints.at(path).map_or_else(|_| &self.unknown[Api::of_unknown(path) as usize], |found| found.value)
    }
}

fn answering(handlers: Handlers<App>, app: &App) -> Handlers {
    let handlers = handlers.fallback(no_route).method_not_allowed_fallback(wrong_method);
    handlers.layer(CatchPanicLayer::custom(errors::panicked)).with_state(app.clone())
}

async fn no_route() -> Problem {
    Problem::new(Kind::NoRoute, "there is no such route; /docs lists all")
}

async fn wrong_method() -> Problem {
    Problem::new(Kind::WrongMethod, "this route does not take this method; /docs lists those it takes")
}

impl Endpoint {
    fn open(api: Api, name: &str, handlers: Handlers) -> Self {
        Self { api, access: Vec::new(), is_generating: false, counters: RouteCounters::new(name), handlers }
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }

    pub(super) fn access(&self, method: &Method) -> Access {
        let declared = self.access.iter().find(|(known, _)| known == method);
        match declared.or(self.access.first()) {
            // Callers without the key do not learn which methods a path has.
            Some((_, Access::Compute)) if declared.is_none() => Access::Read,
            Some((_, access)) => *access,
            None => Access::Open,
        }
    }

    /// In which time it has to be answered; `None`: the handler sees to it.
    pub(super) fn answer_within(&self, usual: Duration) -> Option<Duration> {
        (!self.is_generating).then_some(usual)
    }

    /// Whether it is answered by what is generated.
    pub(super) fn is_generating(&self) -> bool {
        self.is_generating
    }

    pub(super) fn counters(&self) -> &RouteCounters {
        &self.counters
    }

    /// The name of the route in log, metrics and traces: never a client's own text.
    pub(super) fn name(&self) -> &str {
        self.counters.name()
    }

    pub(super) fn handlers(&self) -> Handlers {
        self.handlers.clone()
    }
}
