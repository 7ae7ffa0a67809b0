//! What is shown to those who connect: handlers by path, and what each path asks of its callers.
//! Whatever needs a key is behind a handler of its own, which only a path that asks for one leads to.

use std::sync::Arc;

use axum::Router;
use tower_http::cors::CorsLayer;

use super::{hosts::OwnNames, keys::Access, metrics::RouteCounters, origin::Origins, state::App};

/// The whole site.
pub(crate) struct Site {
    pub(super) app: App,
    pub(super) own_names: OwnNames,
    pub(super) origins: Origins,
    /// Which web pages may read answers; `None`: those of no other origin.
    pub(super) cors: Option<CorsLayer>,
    /// By path, found as the handlers are found.
    routes: matchit::Router<Arc<Route>>,
    nowhere: Arc<Route>,
    open: Router,
    guarded: Router,
}

/// What a site is made of.
pub(super) struct Parts {
    pub(super) app: App,
    pub(super) own_names: OwnNames,
    pub(super) origins: Origins,
    pub(super) cors: Option<CorsLayer>,
    /// Paths, and what they ask; some have names for parts of them.
    pub(super) paths: Vec<(String, Option<Access>)>,
    /// What anybody may ask, and what is shown for all other paths.
    pub(super) open: Router,
    /// What only those may ask who have what their path asks for.
    pub(super) guarded: Router,
}

/// A path, for those who guard and count.
pub(crate) struct Route {
    /// `None`: nothing.
    pub(super) access: Option<Access>,
    pub(super) counters: RouteCounters,
}

impl Site {
    pub(super) fn new(parts: Parts) -> Self {
        let route = |name: &str, access| Arc::new(Route { access, counters: RouteCounters::new(name) });
        let mut routes = matchit::Router::new();
        for (path, access) in parts.paths {
            let route = route(&path, access);
            routes
                .insert(path, route)
                .unwrap_or_else(|error| unreachable!("a path asks the same of all its callers: {error}"));
        }
        Self {
            app: parts.app,
            own_names: parts.own_names,
            origins: parts.origins,
            cors: parts.cors,
            routes,
            nowhere: route("none", None),
            open: parts.open,
            guarded: parts.guarded,
        }
    }

    /// Where a path leads to.
    pub(super) fn route(&self, path: &str) -> &Arc<Route> {
        self.routes.at(path).map_or(&self.nowhere, |found| found.value)
    }

    /// Who answers there.
    pub(super) fn handlers(&self, route: &Route) -> Router {
        if route.access.is_some() { self.guarded.clone() } else { self.open.clone() }
    }
}

impl Route {
    /// The name that the log, metrics and traces know it by: never a client's own words.
    pub(super) fn name(&self) -> &str {
        self.counters.name()
    }
}
