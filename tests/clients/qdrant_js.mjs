// The calls of Qdrant's client in JavaScript against a server. Arguments: where node_modules is, the address, a key.
// Ends with an error at the first answer that is not what it should be.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [prefix, url, apiKey] = process.argv.slice(2);
const { QdrantClient } = createRequire(`${prefix}/`)("@qdrant/js-client-rest");
const client = new QdrantClient({ url, apiKey, checkCompatibility: true });
const ids = (points) => points.map((point) => point.id);
const uuid = "c56a4180-65aa-42ec-a945-5fd21dec0538";
const name = "things";

assert.deepEqual((await client.getCollections()).collections, []);
assert.ok((await client.versionInfo()).version);
assert.equal((await client.collectionExists(name)).exists, false);
await assert.rejects(client.getCollection(name), (error) => error.status === 404);

await client.createCollection(name, {
    vectors: { dense: { size: 3, distance: "Cosine" } },
    sparse_vectors: { words: { modifier: "idf" } },
});
await assert.rejects(client.createCollection(name, { vectors: { size: 3, distance: "Dot" } }), (error) => error.status === 409);
await client.updateCollection(name, { metadata: { owner: "tests" } });
await client.createPayloadIndex(name, { field_name: "colour", field_schema: "keyword", wait: true });
const info = await client.getCollection(name);
assert.equal(info.config.params.vectors.dense.size, 3);
assert.equal(info.payload_schema.colour.data_type, "keyword");
await client.deletePayloadIndex(name, "colour", { wait: true });

await client.upsert(name, {
    wait: true,
    points: [
        { id: 1, vector: { dense: [1, 0, 0], words: { indices: [1, 7], values: [1, 1] } }, payload: { colour: "red", count: 1 } },
        { id: 2, vector: { dense: [0, 1, 0] }, payload: { colour: "green", count: 2 } },
        { id: uuid, vector: { dense: [0.9, 0.1, 0] }, payload: { colour: "red", count: 3, place: { lon: 13.4, lat: 52.5 } } },
    ],
});
await client.upsert(name, { wait: true, batch: { ids: [4], vectors: { dense: [[0, 0, 1]] }, payloads: [{ colour: "blue" }] } });
assert.equal((await client.count(name, { exact: true })).count, 4);
assert.deepEqual(ids(await client.retrieve(name, { ids: [1, uuid], with_vector: true })).sort(), [1, uuid]);

const red = { must: [{ key: "colour", match: { value: "red" } }] };
const near = { query: [1, 0, 0], using: "dense", limit: 2, with_payload: true };
assert.deepEqual(ids((await client.query(name, near)).points), [1, uuid]);
assert.deepEqual(ids((await client.query(name, { ...near, filter: { must_not: red.must } })).points), [2, 4]);
const found = await client.queryBatch(name, { searches: [near, { query: { indices: [7], values: [1] }, using: "words", limit: 2 }] });
assert.deepEqual(found.map((one) => ids(one.points)), [[1, uuid], [1]]);
const groups = await client.queryGroups(name, { ...near, group_by: "colour", group_size: 1, limit: 2 });
assert.deepEqual(groups.groups.map((group) => group.id), ["red", "green"]);
const fused = await client.query(name, {
    prefetch: [near, { query: { indices: [7], values: [1] }, using: "words", limit: 2 }],
    query: { fusion: "rrf" },
    limit: 1,
});
assert.deepEqual(ids(fused.points), [1]);
assert.deepEqual(ids((await client.query(name, { query: { recommend: { positive: [1] } }, using: "dense", limit: 1 })).points), [uuid]);
const counted = await client.query(name, {
    prefetch: { query: [1, 0, 0], using: "dense", limit: 4 },
    query: { formula: { sum: [{ mult: [2, "count"] }, { key: "colour", match: { value: "green" } }] }, defaults: { count: 0 } },
    limit: 4,
});
assert.deepEqual(counted.points.map((point) => point.score), [6, 5, 2, 0]);

const page = await client.scroll(name, { limit: 2, filter: red, with_payload: true });
assert.deepEqual([ids(page.points), page.next_page_offset], [[1, uuid], null]);
const hits = (await client.facet(name, { key: "colour" })).hits;
assert.deepEqual(hits[0], { value: "red", count: 2 });
const pairs = await client.searchMatrixPairs(name, { using: "dense", sample: 4, limit: 1 });
assert.equal(pairs.pairs.length, 4);
const offsets = await client.searchMatrixOffsets(name, { using: "dense", sample: 4, limit: 1 });
assert.equal(offsets.ids.length, 4);

const payload = async (id) => (await client.retrieve(name, { ids: [id] }))[0].payload;
await client.setPayload(name, { payload: { size: "large" }, points: [2], wait: true });
assert.deepEqual(await payload(2), { colour: "green", count: 2, size: "large" });
await client.overwritePayload(name, { payload: { size: "small" }, points: [2], wait: true });
await client.setPayload(name, { payload: { name: "x" }, key: "nested", points: [2], wait: true });
assert.deepEqual(await payload(2), { size: "small", nested: { name: "x" } });
await client.deletePayload(name, { keys: ["size"], points: [2], wait: true });
assert.deepEqual(await payload(2), { nested: { name: "x" } });
await client.clearPayload(name, { points: [2], wait: true });
assert.deepEqual(await payload(2), {});
await client.updateVectors(name, { points: [{ id: 2, vector: { words: { indices: [3], values: [2] } } }], wait: true });
await client.deleteVectors(name, { points: [2], vector: ["dense"], wait: true });
const [second] = await client.retrieve(name, { ids: [2], with_vector: true });
assert.deepEqual(second.vector, { words: { indices: [3], values: [2] } });
await client.createVectorName(name, "late", { dense: { size: 2, distance: "Dot" } });
await client.updateVectors(name, { points: [{ id: 2, vector: { late: [1, 2] } }], wait: true });
assert.deepEqual(ids((await client.query(name, { query: [1, 1], using: "late" })).points), [2]);
await client.deleteVectorName(name, "late");
await client.batchUpdate(name, {
    wait: true,
    operations: [{ delete: { points: [4] } }, { set_payload: { payload: { a: 1 }, points: [1] } }],
});
await client.delete(name, { wait: true, filter: red });
assert.equal((await client.count(name)).count, 1);

await client.updateCollectionAliases({ actions: [{ create_alias: { collection_name: name, alias_name: "other" } }] });
assert.deepEqual((await client.getAliases()).aliases, [{ alias_name: "other", collection_name: name }]);
assert.equal((await client.getCollectionAliases(name)).aliases.length, 1);
assert.equal((await client.count("other")).count, 1);
const snapshot = await client.createSnapshot(name);
assert.deepEqual((await client.listSnapshots(name)).map((one) => one.name), [snapshot.name]);
await client.delete(name, { wait: true, points: [2] });
await client.recoverSnapshot(name, { location: snapshot.name });
assert.equal((await client.count(name)).count, 1);
await client.deleteSnapshot(name, snapshot.name);
await client.deleteCollection(name);
assert.deepEqual((await client.getCollections()).collections, []);
