/** The spans of calls to shards, and what the shards receive of them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SpanKind, SpanStatusCode } from '@opentelemetry/api';
import { startRequestSpan } from '../../lib/platform/tracing.ts';
import { recordSpans } from '../platform/support/recorded-spans.ts';
import { createGroup, createManifest, createOracleTable, range } from './support/oracle.ts';
import { startFleet } from './support/test-fleet.ts';

const table = createOracleTable('t', 2, range(0, 20));
const version = { bundle: 'ctr', version: '1', shardNum: 2, tables: [table] };
const groups = [createGroup(table, range(0, 21))];
const CALLER = { traceparent: () => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' };

test('each call to a shard has a span, whose ids the shard receives', async (t) => {
  const listSpans = await recordSpans(t);
  const fleet = await startFleet([version]);
  const span = startRequestSpan('test', CALLER);
  assert.ok(span);
  const client = fleet.client();
  await client.lookup(createManifest(version), groups, 5_000, { span });
  const spans = listSpans();
  assert.deepEqual(
    spans.map(({ name, kind }) => [name, kind]),
    Array(2).fill(['hypercube.LookupService/lookup', SpanKind.CLIENT]),
  );
  for (const server of fleet.servers) {
    const one = spans.find(({ attributes }) => attributes['hypercube.shard'] === server.shard);
    assert.ok(one);
    const { traceId, spanId } = one.spanContext();
    assert.deepEqual(server.traceparents, [`00-${traceId}-${spanId}-01`]);
    assert.equal(one.parentSpanContext?.spanId, span.traceparent?.split('-')[2]);
    const { attributes } = one;
    assert.equal(attributes['hypercube.keys'], server.shard === 0 ? 11 : 10);
    assert.equal(attributes['hypercube.version'], 'ctr/1');
    assert.equal(attributes['hypercube.attempts'], 1);
    assert.equal(attributes['server.address'], server.endpoint);
    assert.ok(Number(attributes['hypercube.response_bytes']) > 0);
  }
});

test('a call without a span sends no trace', async (t) => {
  const listSpans = await recordSpans(t);
  const fleet = await startFleet([version]);
  await fleet.client().lookup(createManifest(version), groups, 5_000);
  for (const { traceparents } of fleet.servers) assert.deepEqual(traceparents, [undefined]);
  assert.deepEqual(listSpans(), []);
});

test('the span of an unanswered call says why, and how many replicas were tried', async (t) => {
  const listSpans = await recordSpans(t);
  const fleet = await startFleet([version], 2);
  for (const { shard } of fleet.servers) {
    for (const server of fleet.getReplicas(2, shard)) {
      if (shard === 1) server.nextBehavior = () => 'NOT_READY';
    }
  }
  const span = startRequestSpan('test', CALLER);
  const client = fleet.client();
  const summary = await client.lookup(createManifest(version), groups, 5_000, { span });
  assert.equal(summary.unavailable, 10);
  const failed = listSpans().find(({ attributes }) => attributes['hypercube.shard'] === 1);
  assert.ok(failed);
  assert.equal(failed.status.code, SpanStatusCode.ERROR);
  assert.match(failed.status.message ?? '', /NOT_READY/);
  assert.equal(failed.attributes['error.type'], 'UNAVAILABLE');
  assert.equal(failed.attributes['hypercube.attempts'], 2);
});
