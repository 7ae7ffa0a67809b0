//! Collections, aliases, snapshots and indexes of fields as Qdrant's clients describe them.
//! Settings of graphs, segments and shards are kept to be shown again and mean nothing: every search is exact or re-ranked.

use std::collections::BTreeMap;

use magray_index::{
    AliasChange, Collection, CollectionConfig, DenseConfig, Distance, Error, Payload, Result, SparseConfig, Storage,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::vector_stores::settings::StoreSettings;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CreateCollection {
    vectors: Option<Vectors>,
    sparse_vectors: Option<BTreeMap<String, Option<SparseParams>>>,
    metadata: Option<Payload>,
    quantization_config: Option<Value>,
    on_disk_payload: Option<bool>,
    hnsw_config: Option<Map<String, Value>>,
    optimizers_config: Option<Map<String, Value>>,
    shard_number: Option<u32>,
    replication_factor: Option<u32>,
    write_consistency_factor: Option<u32>,
    /// The field of payloads whose words BM25 finds; not Qdrant's.
    text_field: Option<String>,
}

/// One vector without a name, or several with names.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Vectors {
    One(Box<VectorParams>),
    Named(BTreeMap<String, VectorParams>),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct VectorParams {
    size: usize,
    distance: Distance,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    datatype: Option<Datatype>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    multivector_config: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quantization_config: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_disk: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hnsw_config: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Datatype {
    Float32,
    Float16,
    Uint8,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SparseParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modifier: Option<Modifier>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Modifier {
    None,
    Idf,
}

/// A vector that a collection gets after it was made.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NewVector {
    Dense(VectorParams),
    Sparse(SparseParams),
}

impl NewVector {
    pub(crate) fn add(self, name: String, config: &mut CollectionConfig) -> Result<()> {
        if config.dense.contains_key(&name) || config.sparse.contains_key(&name) {
            return Err(Error::Exists { what: format!("vector '{name}'") });
        }
        let mut kept = Kept::of(config);
        match self {
            Self::Dense(params) => {
                let is_quantised = is_given(kept.given.get("quantization_config"));
                config.dense.insert(name.clone(), params.config(is_quantised)?);
                kept.change_vectors("vectors", |all| drop(all.insert(name, json!(params))));
            }
            Self::Sparse(params) => {
                config.sparse.insert(name.clone(), params.config());
                kept.change_vectors("sparse_vectors", |all| drop(all.insert(name, json!(params))));
            }
        }
        config.metadata = kept.into_metadata();
        config.check()
    }
}

/// Takes a vector out of the settings of a collection.
pub(crate) fn remove_vector(name: &str, config: &mut CollectionConfig) -> Result<()> {
    let is_dense = config.dense.remove(name).is_some();
    if !is_dense && config.sparse.remove(name).is_none() {
        return Err(Error::bad(format!("Not existing vector name error: {name}")));
    }
    let mut kept = Kept::of(config);
    kept.change_vectors(if is_dense { "vectors" } else { "sparse_vectors" }, |all| drop(all.remove(name)));
    config.metadata = kept.into_metadata();
    Ok(())
}

fn is_given(setting: Option<&Value>) -> bool {
    setting.is_some_and(|setting| !setting.is_null())
}

/// What is kept beside a collection, in its metadata.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Kept {
    /// What the user wants to remember of it.
    #[serde(default)]
    metadata: Payload,
    /// The settings as they were given, to be shown.
    #[serde(default)]
    given: Payload,
    /// Indexes of fields as they were asked for.
    #[serde(default)]
    fields: Payload,
    /// What OpenAI's API knows of it, where it was made there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<StoreSettings>,
}

/// Of what there is only one form here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct UpdateCollection {
    metadata: Option<Payload>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CreateIndex {
    field_name: String,
    #[serde(default)]
    field_schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ChangeAliases {
    pub(crate) actions: Vec<AliasAction>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "these are the API's names")]
pub(crate) enum AliasAction {
    CreateAlias { collection_name: String, alias_name: String },
    DeleteAlias { alias_name: String },
    RenameAlias { old_alias_name: String, new_alias_name: String },
}

impl AliasAction {
    pub(crate) fn into_change(self) -> AliasChange {
        match self {
            Self::CreateAlias { collection_name, alias_name } => {
                AliasChange::Set { alias: alias_name, collection: collection_name }
            }
            Self::DeleteAlias { alias_name } => AliasChange::Remove { alias: alias_name },
            Self::RenameAlias { old_alias_name, new_alias_name } => {
                AliasChange::Rename { from: old_alias_name, to: new_alias_name }
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecoverSnapshot {
    pub(crate) location: String,
}

impl CreateCollection {
    pub(crate) fn into_config(self) -> Result<CollectionConfig> {
        let is_quantised = is_given(self.quantization_config.as_ref());
        let dense = match &self.vectors {
            None => BTreeMap::new(),
            Some(Vectors::One(params)) => BTreeMap::from([(String::new(), params.config(is_quantised)?)]),
            Some(Vectors::Named(named)) => {
                let config =
                    |(name, params): (&String, &VectorParams)| Ok((name.clone(), params.config(is_quantised)?));
                named.iter().map(config).collect::<Result<_>>()?
            }
        };
        let sparse_params: BTreeMap<String, SparseParams> = self
            .sparse_vectors
            .into_iter()
            .flatten()
            .map(|(name, params)| (name, params.unwrap_or_default()))
            .collect();
        let sparse = sparse_params.iter().map(|(name, params)| (name.clone(), params.config())).collect();
        let mut given = Payload::new();
        let mut keep = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                given.insert(name.to_owned(), value);
            }
        };
        keep("vectors", self.vectors.map(|vectors| json!(vectors)));
        keep("sparse_vectors", (!sparse_params.is_empty()).then(|| json!(sparse_params)));
        keep("quantization_config", self.quantization_config);
        keep("on_disk_payload", self.on_disk_payload.map(Value::from));
        keep("hnsw_config", self.hnsw_config.map(Value::from));
        keep("optimizers_config", self.optimizers_config.map(Value::from));
        keep("shard_number", self.shard_number.map(Value::from));
        keep("replication_factor", self.replication_factor.map(Value::from));
        keep("write_consistency_factor", self.write_consistency_factor.map(Value::from));
        let kept = Kept { metadata: self.metadata.unwrap_or_default(), given, ..Kept::default() };
        Ok(CollectionConfig { dense, sparse, text_field: self.text_field, metadata: kept.into_metadata() })
    }
}

impl VectorParams {
    fn config(&self, is_quantised: bool) -> Result<DenseConfig> {
        let is_quantised = is_quantised || is_given(self.quantization_config.as_ref());
        let storage = match self.datatype {
            _ if is_quantised => Storage::Int8,
            None | Some(Datatype::Float32 | Datatype::Uint8) => Storage::F32,
            Some(Datatype::Float16) => Storage::F16,
        };
        let multi = match self.multivector_config.as_ref().filter(|config| !config.is_null()) {
            None => false,
            Some(config) if config.get("comparator").and_then(Value::as_str) == Some("max_sim") => true,
            Some(_) => return Err(Error::bad("multivector_config has the comparator max_sim")),
        };
        Ok(DenseConfig { size: self.size, distance: self.distance, storage, multi })
    }
}

impl SparseParams {
    fn config(&self) -> SparseConfig {
        SparseConfig { idf: self.modifier == Some(Modifier::Idf) }
    }
}

impl Kept {
    pub(crate) fn of(config: &CollectionConfig) -> Self {
        Self::read(&config.metadata)
    }

    fn read(metadata: &Payload) -> Self {
        serde_json::from_value(Value::Object(metadata.clone())).unwrap_or_default()
    }

    /// Changes it in the collection.
    pub(crate) fn change(collection: &Collection, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        collection.change_metadata(|metadata| {
            let mut kept = Self::read(metadata);
            change(&mut kept)?;
            *metadata = kept.into_metadata();
            Ok(())
        })
    }

    /// The model that embeds its texts, where one is remembered.
    pub(crate) fn model(&self) -> Option<String> {
        self.metadata.get("model")?.as_str().map(str::to_owned)
    }

    pub(crate) fn into_metadata(self) -> Payload {
        match json!(self) {
            Value::Object(metadata) => metadata,
            _ => unreachable!("a struct is an object"),
        }
    }

    pub(crate) fn update(&mut self, update: UpdateCollection) {
        for (name, value) in update.metadata.into_iter().flatten() {
            match value {
                Value::Null => drop(self.metadata.remove(&name)),
                value => drop(self.metadata.insert(name, value)),
            }
        }
    }

    /// Changes the settings of vectors that are shown. One without a name gets a place among those with names.
    fn change_vectors(&mut self, kind: &str, change: impl FnOnce(&mut Payload)) {
        let mut all = match self.given.remove(kind) {
            Some(Value::Object(one)) if one.get("size").is_some_and(Value::is_u64) => {
                Payload::from_iter([(String::new(), Value::Object(one))])
            }
            Some(Value::Object(named)) => named,
            _ => Payload::new(),
        };
        change(&mut all);
        if !all.is_empty() {
            self.given.insert(kind.to_owned(), all.into());
        }
    }

    /// Remembers an index of a field. Filters need none: it is shown alone.
    pub(crate) fn add_field(&mut self, index: CreateIndex) -> Result<()> {
        let schema = match index.field_schema {
            Some(Value::String(kind)) => json!({ "data_type": kind }),
            Some(Value::Object(params)) => json!({ "data_type": params.get("type"), "params": params }),
            _ => return Err(Error::bad("field_schema is a type such as keyword, or an object with a type")),
        };
        const TYPES: [&str; 8] = ["keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid"];
        if !schema["data_type"].as_str().is_some_and(|kind| TYPES.contains(&kind)) {
            return Err(Error::bad(format!("field_schema has one of the types {}", TYPES.join(", "))));
        }
        self.fields.insert(index.field_name, schema);
        Ok(())
    }

    pub(crate) fn remove_field(&mut self, name: &str) {
        self.fields.remove(name);
    }

    /// The collection as clients are shown it. `count` tells how many points have a field.
    pub(crate) fn shown(&self, points: usize, text_field: Option<&str>, count: impl Fn(&str) -> usize) -> Value {
        let given = |name: &str| self.given.get(name).cloned();
        let number = |name: &str| given(name).unwrap_or(1.into());
        let mut params = json!({
            "vectors": given("vectors").unwrap_or_else(|| json!({})),
            "shard_number": number("shard_number"),
            "replication_factor": number("replication_factor"),
            "write_consistency_factor": number("write_consistency_factor"),
            "on_disk_payload": given("on_disk_payload").unwrap_or(true.into()),
        });
        if let Some(sparse) = given("sparse_vectors") {
            params["sparse_vectors"] = sparse;
        }
        let over = |mut defaults: Value, name: &str| {
            if let (Value::Object(own), Some(Value::Object(given))) = (&mut defaults, given(name)) {
                own.extend(given.into_iter().filter(|(_, value)| !value.is_null()));
            }
            defaults
        };
        let hnsw = json!({"m": 0, "ef_construct": 4, "full_scan_threshold": 10_000});
        let optimizer = json!({
            "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 1,
            "flush_interval_sec": 1,
        });
        let field = |(name, schema): (&String, &Value)| {
            let mut schema = schema.clone();
            schema["points"] = count(name).into();
            (name.clone(), schema)
        };
        let mut config = json!({
            "params": params,
            "hnsw_config": over(hnsw, "hnsw_config"),
            "optimizer_config": over(optimizer, "optimizers_config"),
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
            "quantization_config": given("quantization_config"),
        });
        if let Some(field) = text_field {
            config["text_field"] = field.into();
        }
        if !self.metadata.is_empty() {
            config["metadata"] = self.metadata.clone().into();
        }
        json!({
            "status": "green",
            "optimizer_status": "ok",
            "indexed_vectors_count": points,
            "points_count": points,
            "segments_count": 1,
            "config": config,
            "payload_schema": self.fields.iter().map(field).collect::<Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: Value) -> Result<CollectionConfig> {
        serde_json::from_value::<CreateCollection>(json).unwrap().into_config()
    }

    #[test]
    fn one_vector_has_no_name_and_several_have() {
        let one = config(json!({"vectors": {"size": 3, "distance": "Cosine", "on_disk": true}})).unwrap();
        assert_eq!(
            one.dense[""],
            DenseConfig { size: 3, distance: Distance::Cosine, storage: Storage::F32, multi: false }
        );
        let several = config(json!({
            "vectors": {
                "a": {"size": 3, "distance": "Dot", "datatype": "float16", "multivector_config": {"comparator": "max_sim"}},
                "b": {"size": 3, "distance": "Euclid", "quantization_config": {"scalar": {"type": "int8"}}},
            },
            "sparse_vectors": {"c": {"modifier": "idf"}, "d": {}},
        }));
        let several = several.unwrap();
        assert_eq!((several.dense["a"].storage, several.dense["a"].multi), (Storage::F16, true));
        assert_eq!(several.dense["b"].storage, Storage::Int8);
        assert!(several.sparse["c"].idf && !several.sparse["d"].idf);
    }

    #[test]
    fn vectors_are_added_to_the_settings_and_taken_out() {
        let mut changed = config(json!({"vectors": {"size": 3, "distance": "Cosine"}})).unwrap();
        let before = changed.clone();
        let new = |json: Value| serde_json::from_value::<NewVector>(json).unwrap();
        let dense = new(json!({"dense": {"size": 2, "distance": "Dot"}}));
        dense.clone().add("b".to_owned(), &mut changed).unwrap();
        new(json!({"sparse": {"modifier": "idf"}})).add("c".to_owned(), &mut changed).unwrap();
        assert!(changed.dense["b"].size == 2 && changed.sparse["c"].idf);
        let params = |config: &CollectionConfig| Kept::of(config).shown(0, None, |_| 0)["config"]["params"].clone();
        assert_eq!(params(&changed)["vectors"][""]["size"], json!(3));
        assert_eq!(params(&changed)["sparse_vectors"]["c"]["modifier"], json!("idf"));
        assert!(dense.add("c".to_owned(), &mut changed).is_err());
        remove_vector("b", &mut changed).unwrap();
        remove_vector("c", &mut changed).unwrap();
        assert!(remove_vector("c", &mut changed).is_err());
        assert_eq!((&changed.dense, &changed.sparse), (&before.dense, &before.sparse));
        assert_eq!(params(&changed)["vectors"], json!({"": {"size": 3, "distance": "Cosine"}}));
    }

    #[test]
    fn settings_are_shown_as_they_were_given() {
        let vectors = json!({"size": 3, "distance": "Cosine", "on_disk": true});
        let given = json!({"vectors": vectors, "metadata": {"a": 1}, "hnsw_config": {"m": 32}});
        let mut kept = Kept::of(&config(given).unwrap());
        kept.add_field(CreateIndex { field_name: "f".to_owned(), field_schema: Some("keyword".into()) }).unwrap();
        let wrong = CreateIndex { field_name: "f".to_owned(), field_schema: Some("key".into()) };
        assert!(kept.add_field(wrong).is_err());
        let shown = kept.shown(5, Some("t"), |_| 2);
        assert_eq!(shown["config"]["params"]["vectors"], vectors);
        assert_eq!((&shown["config"]["hnsw_config"]["m"], &shown["points_count"]), (&json!(32), &json!(5)));
        assert_eq!((&shown["config"]["metadata"], &shown["config"]["text_field"]), (&json!({"a": 1}), &json!("t")));
        assert_eq!(shown["payload_schema"]["f"], json!({"data_type": "keyword", "points": 2}));
        assert_eq!(
            config(json!({}))
                .map(|config| Kept::of(&config).shown(0, None, |_| 0)["config"]["params"]["vectors"].clone())
                .unwrap(),
            json!({})
        );
    }
}
