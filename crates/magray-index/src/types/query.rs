//! What is asked of a collection, and what comes back.
//! Lookups in other collections and texts to embed are the caller's: examples here are ids or vectors.

use super::filter::Filter;
use super::formula::Formula;
use super::json_path::JsonPath;
use super::point::{Payload, PointId, Vector};
use std::collections::BTreeMap;

/// A ranked query. With `prefetch`, only what the prefetches found is ranked.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// How points are ranked.
    pub what: QueryKind,
    /// The name of the vector; "" is the unnamed one.
    pub using: String,
    /// Only points that meet it. Holds for the prefetches too.
    pub filter: Option<Filter>,
    /// At most this number of points.
    pub limit: usize,
    /// The best points to leave out. Prefetches have none.
    pub offset: usize,
    /// Only points at least as good (for distances: not larger).
    pub score_threshold: Option<f32>,
    /// Never trade recall for time. Small collections are always searched exactly.
    pub exact: bool,
    /// Queries whose results are fused or ranked again.
    pub prefetch: Vec<Query>,
    /// What comes back of the payload. Prefetches return none.
    pub with_payload: PayloadSelector,
    /// Which vectors come back. Prefetches return none.
    pub with_vectors: VectorSelector,
}

/// How points are ranked.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryKind {
    /// The nearest to a vector. If the example is a point, it is left out.
    Nearest(Example),
    /// Like some examples and unlike others.
    Recommend {
        /// Like these.
        positive: Vec<Example>,
        /// Unlike these.
        negative: Vec<Example>,
        /// How examples are combined.
        strategy: Strategy,
    },
    /// Near the target, on the positive side of the pairs.
    Discover {
        /// Near this.
        target: Example,
        /// The pairs.
        context: Vec<ContextPair>,
    },
    /// On the positive side of the pairs.
    Context(Vec<ContextPair>),
    /// By a value of the payload.
    OrderBy(OrderBy),
    /// Near the target, moved towards better and away from worse examples.
    Feedback(Feedback),
    /// Ranks of the prefetches combined.
    Fusion(Fusion),
    /// What the prefetches found, with new scores.
    Formula(Formula),
    /// By BM25 of the collection's `text_field`.
    Text(String),
    /// In a random order.
    Sample,
    /// By id; every score is 1.
    All,
}

/// A vector, or a point that has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Example {
    /// The vector `using` of this point. The point itself is not in the result.
    Id(PointId),
    /// The vector itself.
    Vector(Vector),
}

/// One example that is nearer than the other.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextPair {
    /// The nearer one.
    pub positive: Example,
    /// The farther one.
    pub negative: Example,
}

/// How examples of a recommendation are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Searches with one vector made of the averages.
    #[default]
    AverageVector,
    /// The best score of any positive, or the worst of any negative example.
    BestScore,
    /// Scores of the positive examples less those of the negative ones.
    SumScores,
}

/// A target, and what was said of examples. The score is `a` times the similarity to the target, and for each two examples
/// `c` times the difference of what was said to the power of `b`, times that of the similarities.
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// Near this.
    pub target: Example,
    /// Examples with what was said of them: the larger the better.
    pub examples: Vec<(Example, f32)>,
    /// The weight of the target.
    pub a: f32,
    /// How much more large differences count.
    pub b: f32,
    /// The weight of the examples.
    pub c: f32,
}

/// How ranks of several prefetches are combined.
#[derive(Clone, Debug, PartialEq)]
pub enum Fusion {
    /// Reciprocal ranks: the sum of 1 / (k + rank), each list with its weight.
    Rrf {
        /// Qdrant's default is 2.
        k: f32,
        /// One for each prefetch, or none.
        weights: Vec<f32>,
    },
    /// Scores of each list scaled by their mean and deviation.
    Dbsf,
}

/// Points by a number or date of their payload. Those without one are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderBy {
    /// Where the value is. A point with several values comes several times.
    pub key: JsonPath,
    /// Smallest or largest first.
    pub direction: Direction,
    /// The first value; dates are microseconds since 1970.
    pub start_from: Option<serde_json::Number>,
}

/// Smallest or largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Smallest first.
    #[default]
    Ascending,
    /// Largest first.
    Descending,
}

/// What comes back of a payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PayloadSelector {
    /// Nothing.
    #[default]
    None,
    /// All of it.
    All,
    /// Only what lies at these paths.
    Include(Vec<JsonPath>),
    /// Everything but what lies at these paths.
    Exclude(Vec<JsonPath>),
}

/// Which vectors come back.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VectorSelector {
    /// None.
    #[default]
    None,
    /// All of them.
    All,
    /// Those with these names.
    Names(Vec<String>),
}

/// A point without a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its id.
    pub id: PointId,
    /// None if it was not asked for.
    pub payload: Option<Payload>,
    /// None if they were not asked for.
    pub vectors: Option<BTreeMap<String, Vector>>,
    /// The value it was ordered by.
    pub order_value: Option<serde_json::Number>,
}

/// A point with a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Its id.
    pub id: PointId,
    /// As the query's kind has it.
    pub score: f32,
    /// None if it was not asked for.
    pub payload: Option<Payload>,
    /// None if they were not asked for.
    pub vectors: Option<BTreeMap<String, Vector>>,
    /// The value it was ordered by.
    pub order_value: Option<serde_json::Number>,
}

/// Points that an operation changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Selector {
    /// These; ids that are not there are left out.
    Ids(Vec<PointId>),
    /// Those that meet it.
    Filter(Filter),
}

/// A page of points, by id or by a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrollRequest {
    /// Only points that meet it.
    pub filter: Option<Filter>,
    /// The first id of the page. Not together with `order_by`.
    pub offset: Option<PointId>,
    /// At most this number of points.
    pub limit: usize,
    /// By a value in place of the id.
    pub order_by: Option<OrderBy>,
    /// What comes back of the payload.
    pub with_payload: PayloadSelector,
    /// Which vectors come back.
    pub with_vectors: VectorSelector,
}

/// A page, and where the next one begins.
#[derive(Clone, Debug, PartialEq)]
pub struct ScrollPage {
    /// In order.
    pub points: Vec<Record>,
    /// The offset of the next page, if there is one.
    pub next: Option<PointId>,
}

/// A ranked query whose results are put into groups by a value of the payload.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupQuery {
    /// Its limit is the number of groups; its offset is not used.
    pub query: Query,
    /// Strings and integers that lie here name the groups. A point can be in several.
    pub group_by: JsonPath,
    /// At most this number of points in each group.
    pub group_size: usize,
}

/// Points that have one value, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// A string or an integer.
    pub id: serde_json::Value,
    /// Best first.
    pub hits: Vec<Scored>,
}

/// A value and the number of points that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct FacetHit {
    /// A string, an integer or a boolean.
    pub value: serde_json::Value,
    /// Points.
    pub count: usize,
}

impl Query {
    /// A query of the unnamed vector with nothing else asked for.
    pub fn new(what: QueryKind, limit: usize) -> Self {
        Self {
            what,
            using: String::new(),
            filter: None,
            limit,
            offset: 0,
            score_threshold: None,
            exact: false,
            prefetch: Vec::new(),
            with_payload: PayloadSelector::None,
            with_vectors: VectorSelector::None,
        }
    }
}
