//! Queries as Qdrant's clients send them, and what of points comes back.
//! Texts to embed and points of other collections are put in by the server before a query is made of them.

use std::fmt;

use magray_index::{
    ContextPair, Example, Feedback, Filter, Formula, Fusion, GroupQuery, Instant, OrderBy, Payload, PointId, Query,
    QueryKind, Result, ScrollRequest, Strategy,
};
use serde::{
    Deserialize,
    de::{self, Deserializer, MapAccess, SeqAccess, Visitor, value},
};

use super::{
    forms::{OneOrMany, OrderByInput, WithLookup, WithPayload, WithVector},
    vectors::{Document, VectorInput},
};

const LIMIT: usize = 10;
const GROUP_SIZE: usize = 3;

/// A ranked query. Prefetches have the same form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct QueryRequest {
    prefetch: OneOrMany<QueryRequest>,
    query: Option<QueryInput>,
    using: Option<String>,
    filter: Option<Filter>,
    score_threshold: Option<f32>,
    params: Option<SearchParams>,
    limit: Option<usize>,
    offset: Option<usize>,
    with_payload: Option<WithPayload>,
    with_vector: Option<WithVector>,
    lookup_from: Option<LookupFrom>,
}

/// How it is searched; what belongs to graphs is passed over.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct SearchParams {
    exact: Option<bool>,
}

/// Where the points of a query's examples are, if not in the collection itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LookupFrom {
    pub(crate) collection: String,
    #[serde(default)]
    pub(crate) vector: Option<String>,
}

/// A request of a route that asks for points.
pub(crate) trait AsksForPoints: for<'de> Deserialize<'de> + Send + 'static {
    fn into_request(self) -> Result<QueryRequest>;
}

impl AsksForPoints for QueryRequest {
    fn into_request(self) -> Result<QueryRequest> {
        Ok(self)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct GroupsRequest<T> {
    #[serde(flatten)]
    pub(crate) query: T,
    #[serde(flatten)]
    pub(crate) grouping: Grouping,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Grouping {
    group_by: String,
    #[serde(default)]
    group_size: Option<usize>,
    #[serde(default)]
    pub(crate) with_lookup: Option<WithLookup>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BatchRequest<T> {
    pub(crate) searches: Vec<T>,
}

/// Distances among a sample of points.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MatrixRequest {
    pub(crate) filter: Option<Filter>,
    pub(crate) using: Option<String>,
    sample: Option<usize>,
    limit: Option<usize>,
}

impl MatrixRequest {
    /// Every point of a sample is compared with all others of it.
    const SAMPLE_MAX: usize = 10_000;

    pub(crate) fn sample(&self) -> usize {
        self.sample.unwrap_or(10).clamp(1, Self::SAMPLE_MAX)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(3).clamp(1, Self::SAMPLE_MAX)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum QueryInput {
    Nearest(VectorInput, Option<Mmr>),
    Recommend(RecommendInput),
    Discover(DiscoverInput),
    Context(Vec<PairInput>),
    OrderBy(OrderByInput),
    Feedback(FeedbackInput),
    Fusion(Fusion),
    Formula(Formula),
    Text(String),
    Sample,
}

/// The nearest that are unlike each other.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mmr {
    #[serde(default)]
    pub(crate) diversity: Option<f32>,
    #[serde(default)]
    pub(crate) candidates_limit: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RecommendInput {
    pub(super) positive: Option<Vec<VectorInput>>,
    pub(super) negative: Option<Vec<VectorInput>>,
    pub(super) strategy: Option<StrategyName>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StrategyName {
    AverageVector,
    BestScore,
    SumScores,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscoverInput {
    pub(super) target: VectorInput,
    pub(super) context: OneOrMany<PairInput>,
}

/// A target, and how good examples were.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackInput {
    target: VectorInput,
    feedback: Vec<FeedbackItem>,
    strategy: FeedbackStrategy,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackItem {
    example: VectorInput,
    score: f32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FeedbackStrategy {
    Naive { a: f32, b: f32, c: f32 },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairInput {
    positive: VectorInput,
    negative: VectorInput,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ScrollBody {
    offset: Option<PointId>,
    limit: Option<usize>,
    filter: Option<Filter>,
    with_payload: Option<WithPayload>,
    with_vector: Option<WithVector>,
    order_by: Option<OrderByInput>,
}

impl QueryRequest {
    /// With another query, of the vector that it names if it names one.
    pub(super) fn asking(self, query: QueryInput, using: Option<String>) -> Self {
        Self { query: Some(query), using: using.or(self.using), ..self }
    }

    /// Visits every vector of the query and of its prefetches, with the place where the points of its examples are.
    pub(crate) fn visit_vectors<E>(
        &mut self,
        visit: &mut impl FnMut(&mut VectorInput, &str, Option<&LookupFrom>) -> Result<(), E>,
    ) -> Result<(), E> {
        for prefetch in &mut self.prefetch.0 {
            prefetch.visit_vectors(visit)?;
        }
        let (using, lookup) = (self.using.as_deref().unwrap_or_default(), self.lookup_from.as_ref());
        let mut all = |vector: &mut VectorInput| visit(vector, using, lookup);
        let pairs = match &mut self.query {
            Some(QueryInput::Nearest(vector, _)) => return all(vector),
            Some(QueryInput::Recommend(RecommendInput { positive, negative, .. })) => {
                let mut both = positive.iter_mut().chain(negative).flatten();
                return both.try_for_each(all);
            }
            Some(QueryInput::Discover(DiscoverInput { target, context })) => {
                all(target)?;
                &mut context.0
            }
            Some(QueryInput::Context(pairs)) => pairs,
            Some(QueryInput::Feedback(FeedbackInput { target, feedback, .. })) => {
                all(target)?;
                return feedback.iter_mut().map(|item| &mut item.example).try_for_each(all);
            }
            _ => return Ok(()),
        };
        pairs.iter_mut().flat_map(|pair| [&mut pair.positive, &mut pair.negative]).try_for_each(all)
    }

    /// The request for unlike points, where there is one; prefetches cannot have it.
    pub(crate) fn mmr(&self) -> Option<Mmr> {
        match &self.query {
            Some(QueryInput::Nearest(_, mmr)) => *mmr,
            _ => None,
        }
    }

    pub(crate) fn into_query(self) -> Result<Query> {
        Ok(Query {
            what: self.query.map_or(Ok(QueryKind::All), QueryInput::into_kind)?,
            using: self.using.unwrap_or_default(),
            filter: self.filter,
            limit: self.limit.unwrap_or(LIMIT),
            offset: self.offset.unwrap_or(0),
            score_threshold: self.score_threshold,
            exact: self.params.is_some_and(|params| params.exact == Some(true)),
            prefetch: self.prefetch.0.into_iter().map(Self::into_query).collect::<Result<_>>()?,
            with_payload: self.with_payload.unwrap_or_default().0,
            with_vectors: self.with_vector.unwrap_or_default().0,
        })
    }
}

impl Grouping {
    /// The groups of a query.
    pub(crate) fn into_query(self, query: QueryRequest) -> Result<GroupQuery> {
        let group_by = self.group_by.parse()?;
        Ok(GroupQuery { query: query.into_query()?, group_by, group_size: self.group_size.unwrap_or(GROUP_SIZE) })
    }
}

impl QueryInput {
    fn into_kind(self) -> Result<QueryKind> {
        let many =
            |inputs: Option<Vec<VectorInput>>| inputs.into_iter().flatten().map(example).collect::<Result<Vec<_>>>();
        Ok(match self {
            Self::Nearest(vector, _) => QueryKind::Nearest(example(vector)?),
            Self::Recommend(RecommendInput { positive, negative, strategy }) => QueryKind::Recommend {
                positive: many(positive)?,
                negative: many(negative)?,
                strategy: match strategy {
                    None | Some(StrategyName::AverageVector) => Strategy::AverageVector,
                    Some(StrategyName::BestScore) => Strategy::BestScore,
                    Some(StrategyName::SumScores) => Strategy::SumScores,
                },
            },
            Self::Discover(DiscoverInput { target, context }) => {
                QueryKind::Discover { target: example(target)?, context: pairs(context.0)? }
            }
            Self::Context(context) => QueryKind::Context(pairs(context)?),
            Self::OrderBy(order) => QueryKind::OrderBy(order.into_order()?),
            Self::Feedback(FeedbackInput { target, feedback, strategy: FeedbackStrategy::Naive { a, b, c } }) => {
                let said = |item: FeedbackItem| Ok((example(item.example)?, item.score));
                let examples = feedback.into_iter().map(said).collect::<Result<_>>()?;
                QueryKind::Feedback(Feedback { target: example(target)?, examples, a, b, c })
            }
            Self::Fusion(fusion) => QueryKind::Fusion(fusion),
            Self::Formula(formula) => QueryKind::Formula(formula),
            Self::Text(text) => QueryKind::Text(text),
            Self::Sample => QueryKind::Sample,
        })
    }
}

fn example(input: VectorInput) -> Result<Example> {
    match input {
        VectorInput::Vector(vector) => Ok(Example::Vector(vector)),
        VectorInput::Id(id) => Ok(Example::Id(id)),
        VectorInput::Document(_) => unreachable!("texts are embedded before"),
    }
}

fn pairs(inputs: Vec<PairInput>) -> Result<Vec<ContextPair>> {
    let pair =
        |input: PairInput| Ok(ContextPair { positive: example(input.positive)?, negative: example(input.negative)? });
    inputs.into_iter().map(pair).collect()
}

impl OrderByInput {
    fn into_order(self) -> Result<OrderBy> {
        let wrong = || magray_index::Error::bad("start_from is a number, or a date such as 2024-06-15T12:30:00Z");
        let start_from = match self.start_from {
            None | Some(serde_json::Value::Null) => None,
            Some(serde_json::Value::Number(number)) => Some(number),
            Some(serde_json::Value::String(text)) => Some(Instant::parse(&text).ok_or_else(wrong)?.0.into()),
            Some(_) => return Err(wrong()),
        };
        Ok(OrderBy { key: self.key.parse()?, direction: self.direction, start_from })
    }
}

impl ScrollBody {
    pub(crate) fn into_request(self) -> Result<ScrollRequest> {
        Ok(ScrollRequest {
            filter: self.filter,
            offset: self.offset,
            limit: self.limit.unwrap_or(LIMIT),
            order_by: self.order_by.map(OrderByInput::into_order).transpose()?,
            with_payload: self.with_payload.unwrap_or_else(WithPayload::all).0,
            with_vectors: self.with_vector.unwrap_or_default().0,
        })
    }
}

/// What `query` may be beside a vector: one of these fields.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QueryObject {
    nearest: Option<VectorInput>,
    mmr: Option<Mmr>,
    recommend: Option<RecommendInput>,
    discover: Option<DiscoverInput>,
    context: Option<OneOrMany<PairInput>>,
    order_by: Option<OrderByInput>,
    fusion: Option<FusionName>,
    rrf: Option<RrfInput>,
    relevance_feedback: Option<FeedbackInput>,
    formula: Option<serde_json::Value>,
    defaults: Option<Payload>,
    sample: Option<SampleName>,
    text: Option<TextInput>,
    model: Option<String>,
    options: Option<de::IgnoredAny>,
    indices: Option<Vec<u32>>,
    values: Option<Vec<f32>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum FusionName {
    Rrf,
    Dbsf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RrfInput {
    #[serde(default)]
    k: Option<f32>,
    #[serde(default)]
    weights: Option<Vec<f32>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SampleName {
    Random,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextInput {
    Text(String),
    Object { query: String },
}

/// Of reciprocal ranks, as Qdrant has it.
const RRF_K: f32 = 2.0;

impl QueryObject {
    fn into_input(self) -> Result<QueryInput, String> {
        const ONE: &str = "a query has one of nearest, recommend, discover, context, order_by, fusion, rrf, formula, \
             relevance_feedback, sample, text; or it is a vector";
        let rrf = |k: Option<f32>, weights| QueryInput::Fusion(Fusion::Rrf { k: k.unwrap_or(RRF_K), weights });
        let text = match (self.text, self.model) {
            (Some(TextInput::Text(text)), Some(model)) => {
                let document = Document { text, model: Some(model) };
                Some(QueryInput::Nearest(VectorInput::Document(document), None))
            }
            (Some(TextInput::Text(query) | TextInput::Object { query }), None) => Some(QueryInput::Text(query)),
            (None, None) => None,
            _ => return Err(ONE.to_owned()),
        };
        let sparse = match (self.indices, self.values) {
            (Some(indices), Some(values)) => {
                let vector = magray_index::Vector::Sparse { indices, values };
                Some(QueryInput::Nearest(VectorInput::Vector(vector), None))
            }
            (None, None) => None,
            _ => return Err("a sparse vector has indices and values".to_owned()),
        };
        let formula = match (self.formula, self.defaults) {
            (Some(formula), defaults) => {
                let formula = Formula::from_json(&formula, defaults.unwrap_or_default());
                Some(QueryInput::Formula(formula.map_err(|error| error.to_string())?))
            }
            (None, None) => None,
            _ => return Err("defaults need a formula".to_owned()),
        };
        let mmr = self.mmr;
        let given = [
            self.nearest.map(|vector| QueryInput::Nearest(vector, mmr)),
            self.recommend.map(QueryInput::Recommend),
            self.discover.map(QueryInput::Discover),
            self.context.map(|context| QueryInput::Context(context.0)),
            self.order_by.map(QueryInput::OrderBy),
            self.fusion.map(|fusion| match fusion {
                FusionName::Rrf => rrf(None, Vec::new()),
                FusionName::Dbsf => QueryInput::Fusion(Fusion::Dbsf),
            }),
            self.rrf.map(|input| rrf(input.k, input.weights.unwrap_or_default())),
            self.relevance_feedback.map(QueryInput::Feedback),
            formula,
            self.sample.map(|SampleName::Random| QueryInput::Sample),
            text,
            sparse,
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(one), None) => Ok(one),
            _ => Err(ONE.to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for QueryInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = QueryInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vector, the id of a point, or an object such as {\"fusion\": \"rrf\"}")
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<QueryInput, E> {
                Ok(QueryInput::Nearest(VectorInput::Id(PointId::Number(id)), None))
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<QueryInput, E> {
                let id = PointId::deserialize(value::StrDeserializer::new(id))?;
                Ok(QueryInput::Nearest(VectorInput::Id(id), None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<QueryInput, A::Error> {
                let vector = VectorInput::deserialize(value::SeqAccessDeserializer::new(items))?;
                Ok(QueryInput::Nearest(vector, None))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<QueryInput, A::Error> {
                let object = QueryObject::deserialize(value::MapAccessDeserializer::new(map))?;
                object.into_input().map_err(de::Error::custom)
            }
        }
        from.deserialize_any(Either)
    }
}
