//! Searches as older clients of Qdrant send them: search, recommend and discover, each with a route of its own.
//! All of them become queries.

use magray_index::{Error, Result};
use serde::Deserialize;

use super::{
    forms::OneOrMany,
    query::{AsksForPoints, DiscoverInput, PairInput, QueryInput, QueryRequest, RecommendInput, StrategyName},
    vectors::VectorInput,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OlderRequest {
    /// What is searched for.
    vector: Option<NamedVector>,
    positive: Option<Vec<VectorInput>>,
    negative: Option<Vec<VectorInput>>,
    strategy: Option<StrategyName>,
    target: Option<VectorInput>,
    context: Option<OneOrMany<PairInput>>,
    #[serde(flatten)]
    rest: QueryRequest,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NamedVector {
    Named { name: String, vector: VectorInput },
    Unnamed(VectorInput),
}

impl AsksForPoints for OlderRequest {
    fn into_request(self) -> Result<QueryRequest> {
        let Self { vector, positive, negative, strategy, target, context, rest } = self;
        let query = match (vector, target, context) {
            (Some(NamedVector::Named { name, vector }), None, None) => {
                return Ok(rest.asking(QueryInput::Nearest(vector, None), Some(name)));
            }
            (Some(NamedVector::Unnamed(vector)), None, None) => QueryInput::Nearest(vector, None),
            (None, Some(target), context) => {
                QueryInput::Discover(DiscoverInput { target, context: context.unwrap_or_default() })
            }
            (None, None, Some(context)) => QueryInput::Context(context.0),
            (None, None, None) if positive.is_some() || negative.is_some() => {
                QueryInput::Recommend(RecommendInput { positive, negative, strategy })
            }
            _ => {
                return Err(Error::bad(
                    "a search has a vector, positive or negative examples, or a target and context",
                ));
            }
        };
        Ok(rest.asking(query, None))
    }
}

#[cfg(test)]
mod tests {
    use magray_index::QueryKind;

    use super::*;

    #[test]
    fn older_requests_become_queries() {
        let kind = |json: &str| {
            let query = serde_json::from_str::<OlderRequest>(json).unwrap().into_request()?.into_query()?;
            Ok::<_, Error>((query.what, query.using, query.limit))
        };
        let (what, using, limit) =
            kind(r#"{"vector": {"name": "a", "vector": [1, 2]}, "limit": 3, "filter": {"must": []}}"#).unwrap();
        assert!(matches!(what, QueryKind::Nearest(_)) && using == "a" && limit == 3);
        let (what, using, _) =
            kind(r#"{"positive": [1], "negative": [[1.5]], "strategy": "best_score", "using": "b"}"#).unwrap();
        assert!(matches!(what, QueryKind::Recommend { .. }) && using == "b");
        let (what, ..) = kind(r#"{"target": [1.5], "context": [{"positive": 1, "negative": 2}]}"#).unwrap();
        assert!(matches!(what, QueryKind::Discover { .. }));
        assert!(matches!(kind(r#"{"context": [{"positive": 1, "negative": 2}]}"#).unwrap().0, QueryKind::Context(_)));
        assert!(kind("{}").is_err());
    }
}
