//! The values that callers hand in and get back: points, settings of collections, filters, queries.
//! Holds no data of a store and computes nothing but conversions.

mod config;
mod filter;
mod filter_json;
mod formula;
mod instant;
mod json_path;
mod point;
mod query;

pub use config::{CollectionConfig, DenseConfig, Distance, SparseConfig, Storage};
pub use filter::{Condition, FieldTest, Filter, GeoPoint, Range, Ring};
pub use formula::{Curve, Decay, Expression, Field, Formula, Function};
pub use instant::Instant;
pub(crate) use json_path::merge;
pub use json_path::{JsonPath, PathStep};
pub use point::{Payload, Point, PointId, Vector, check_vector};
pub use query::{
    ContextPair, Direction, Example, FacetHit, Feedback, Fusion, Group, GroupQuery, OrderBy, PayloadSelector, Query,
    QueryKind, Record, Scored, ScrollPage, ScrollRequest, Selector, Strategy, VectorSelector,
};
