/** agent.yaml: parser and JSON Schema agree, and errors name the position in the file. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import { parse } from 'yaml';
import { parseAgentConfig } from '../../../cube-agent/host/agent-config.ts';

const validate = new Ajv({ allowUnionTypes: true }).compile(
  JSON.parse(readFileSync('docs/schemas/agent.schema.json', 'utf8')),
);

const SMALL = `repository: ../models
data-dir: data
bundles: [{ name: ctr-dnn }]
servers: ["127.0.0.1:8000"]
`;

const FULL = `repository: s3://models/ctr?region=eu-1
trusted-keys: keys
data-dir: /var/lib/hypercube
bundles:
  - { name: ctr-dnn, channels: [stable, canary] }
  - { name: other, channels: nightly }
supervise: true
servers:
  - { shard: 0, shard-num: 4, host: 0.0.0.0, port: 8000, admin-port: 9000, flags: [--threads, 2] }
  - { shard: 1, shard-num: 4, port: 8001 }
control-token-file: token
listen: "[::]:8100"
token-file: agent-token
tls-cert: tls/cert.pem
tls-key: tls/key.pem
tls-ca: tls/ca.pem
tls-server-name: cube.example
poll-ms: 500
retire-grace-ms: 0
parallel: 8
rate-limit: 200MiB
keep-free: 10GiB
keep-versions: 5
keep-bytes: 1000000
`;

test('every field is read; relative paths start at the file', () => {
  const config = parseAgentConfig(FULL, '/etc/hypercube/agent.yaml');
  assert.deepEqual(config, {
    repository: 's3://models/ctr?region=eu-1',
    trustedKeys: '/etc/hypercube/keys',
    dataFolder: '/var/lib/hypercube',
    bundles: [
      { name: 'ctr-dnn', channels: ['stable', 'canary'] },
      { name: 'other', channels: ['nightly'] },
    ],
    servers: ['127.0.0.1:9000', '127.0.0.1:8001'],
    supervised: [
      {
        shard: 0,
        shardNum: 4,
        control: '127.0.0.1:9000',
        host: '0.0.0.0',
        port: 8000,
        adminPort: 9000,
        flags: ['--threads', '2'],
      },
      {
        shard: 1,
        shardNum: 4,
        control: '127.0.0.1:8001',
        host: '127.0.0.1',
        port: 8001,
        adminPort: undefined,
        flags: [],
      },
    ],
    controlTokenFile: '/etc/hypercube/token',
    listen: '[::]:8100',
    tokenFile: '/etc/hypercube/agent-token',
    tlsCert: '/etc/hypercube/tls/cert.pem',
    tlsKey: '/etc/hypercube/tls/key.pem',
    tlsCa: '/etc/hypercube/tls/ca.pem',
    tlsServerName: 'cube.example',
    pollMs: 500,
    retireGraceMs: 0,
    parallel: 8,
    bytesPerSecond: 200 * 2 ** 20,
    keepFreeBytes: 10 * 2 ** 30,
    retention: { maxVersions: 5, maxBytes: 1_000_000 },
  });
  const small = parseAgentConfig(SMALL, '/etc/hypercube/agent.yaml');
  assert.equal(small.repository, '/etc/models');
  assert.equal(small.listen, undefined);
  assert.deepEqual(small.bundles, [{ name: 'ctr-dnn', channels: ['stable'] }]);
});

test('parser and JSON Schema accept and refuse the same files', () => {
  for (const good of [SMALL, FULL]) {
    assert.ok(validate(parse(good)), JSON.stringify(validate.errors));
  }
  const wrong: readonly (readonly [string, RegExp])[] = [
    [`${SMALL}poll: 5\n`, /agent\.yaml:5:1: unknown field "poll"/],
    [`${SMALL}poll-ms: 5\n`, /poll-ms: expected an integer in 50\.\.3600000/],
    [`${SMALL}keep-free: much\n`, /keep-free: Expected bytes/],
    [`${SMALL}listen: nowhere\n`, /listen: endpoint: expected host:port/],
    [SMALL.replace('ctr-dnn', '../x'), /bundles\[0\]\.name: bundle/],
    [SMALL.replace('repository: ../models\n', ''), /repository is missing/],
    [SMALL.replace('bundles: [{ name: ctr-dnn }]', 'bundles: []'), /expected 1\.\.100 items/],
    [FULL.replace('tls-key: tls/key.pem\n', ''), /TLS needs .*: tls-key missing/],
    [FULL.replace('shard: 1, ', ''), /servers\[1\]: shard is missing/],
    [FULL.replace('port: 8001', 'port: 0'), /servers\[1\]\.port: expected an integer/],
  ];
  for (const [text, message] of wrong) {
    assert.throws(() => parseAgentConfig(text, 'agent.yaml'), { message });
    assert.ok(!validate(parse(text)), text);
  }
  const beyondTheSchema: readonly (readonly [string, RegExp])[] = [
    [
      SMALL.replace('["127', '["[::1]:8000", "127.0.0.1:8000", "127'),
      /agent\.yaml:4:43: servers\[2\]: 127\.0\.0\.1:8000 is listed twice/,
    ],
    [FULL.replace('port: 8001', 'port: 8000'), /servers: port 8000 is used twice/],
    [FULL.replace('shard: 1,', 'shard: 4,'), /shard: expected an integer in 0\.\.3/],
    [FULL.replace('name: other', 'name: ctr-dnn'), /a bundle is listed twice/],
    [FULL.replace('--threads', '--data-dir=/'), /--data-dir=\/ is set by the agent/],
    [FULL.replace('--threads', '--tls-key=/'), /--tls-key=\/ is set by the agent/],
  ];
  for (const [text, message] of beyondTheSchema) {
    assert.throws(() => parseAgentConfig(text, 'agent.yaml'), { message });
  }
});
