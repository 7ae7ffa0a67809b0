//! What handlers and tools know of the request that they answer, as an extension of it.
//! Holds no body.

use std::{net::IpAddr, sync::Arc};

use super::{connections::Connection, keys::Access, request_record::RequestRecord};

#[derive(Clone)]
pub(crate) struct RequestScope {
    pub(crate) access: Access,
    pub(crate) peer: IpAddr,
    /// For work that goes on in a task of its own.
    pub(crate) record: RequestRecord,
    pub(crate) connection: Arc<Connection>,
}
