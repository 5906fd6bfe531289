/** controller.yaml: parser and JSON Schema agree, and errors name the position in the file. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import { parse } from 'yaml';
import {
  HEALTH_DEFAULTS,
  POLICY_DEFAULTS,
  parseControllerConfig,
} from '../../../cube-agent/rollout/rollout-config.ts';

const validate = new Ajv({ allowUnionTypes: true }).compile(
  JSON.parse(readFileSync('docs/schemas/controller.schema.json', 'utf8')),
);

const SMALL = 'repository: ../models\nfleet: fleet.json\nbundles: [{ name: ctr }]\n';

const FULL = `repository: s3://models/ctr
trusted-keys: keys
signing-key: key.pem
fleet: /srv/fleet.json
bundles:
  - name: ctr
    channels: [{ name: canary, hold-ms: 60000 }, { name: stable }]
    replicas: 2
    gate: false
    gate-flags: [--rows, "100"]
    serving: ["10.0.0.5:9000"]
    watch-ms: 1
    limits:
      requests-min: 10
      error-rate: 0.5
      unavailable: 0.25
      unseen-rise: 1
      score-drift: 2
      p99-ms: 8
    staging-ms: 2
    gating-ms: 3
    activating-ms: 4
automatic: false
listen: 127.0.0.1:8200
token-file: token
control-token-file: control
agent-token-file: agent
tls-cert: cert.pem
tls-key: key.pem
tls-ca: ca.pem
tls-server-name: cube.example
poll-ms: 50
`;

test('every field is read; relative paths start at the file', () => {
  assert.deepEqual(parseControllerConfig(FULL, '/etc/hc/controller.yaml'), {
    repository: 's3://models/ctr',
    trustedKeys: '/etc/hc/keys',
    signingKey: '/etc/hc/key.pem',
    fleetFile: '/srv/fleet.json',
    bundles: [
      {
        name: 'ctr',
        policy: {
          channels: [
            { channel: 'canary', holdMs: 60_000 },
            { channel: 'stable', holdMs: 0 },
          ],
          replicas: 2,
          gate: false,
          watchMs: 1,
          stagingMs: 2,
          gatingMs: 3,
          activatingMs: 4,
        },
        health: {
          requestsMin: 10,
          errorRateMax: 0.5,
          unavailableMax: 0.25,
          unseenRiseMax: 1,
          scoreDriftMax: 2,
          p99MsMax: 8,
        },
        serving: ['10.0.0.5:9000'],
        gateFlags: ['--rows', '100'],
      },
    ],
    automatic: false,
    listen: '127.0.0.1:8200',
    tokenFile: '/etc/hc/token',
    controlTokenFile: '/etc/hc/control',
    agentTokenFile: '/etc/hc/agent',
    tlsCert: '/etc/hc/cert.pem',
    tlsKey: '/etc/hc/key.pem',
    tlsCa: '/etc/hc/ca.pem',
    tlsServerName: 'cube.example',
    pollMs: 50,
  });
  const small = parseControllerConfig(SMALL, '/etc/hc/controller.yaml');
  assert.equal(small.repository, '/etc/models');
  assert.deepEqual(small.bundles[0]?.policy, POLICY_DEFAULTS);
  assert.deepEqual(small.bundles[0]?.health, HEALTH_DEFAULTS);
  assert.equal(small.automatic, true);
});

const BAD: readonly [string, string, RegExp][] = [
  ['fleet: fleet.json', '', /fleet is missing/],
  ['bundles: [{ name: ctr }]', 'bundles: []', /1\.\.100 items/],
  ['bundles:', 'tls-ca: ca.pem\nbundles:', /tls-cert and tls-key missing/],
  ['{ name: ctr }', '{ name: ctr, channels: [] }', /at least one/],
  ['{ name: ctr }', '{ name: ctr, replicas: some }', /"all" or a number/],
  ['{ name: ctr }', '{ name: ctr, watch-ms: -1 }', /watch-ms/],
  ['{ name: ctr }', '{ name: ctr, limits: { auc: 1 } }', /auc/],
  ['{ name: ctr }', '{ name: ctr, limits: { p99-ms: -1 } }', /a number in 0\.\.600000, got -1/],
  ['{ name: ctr }', '{ name: ctr, limits: { error-rate: 2 } }', /a number in 0\.\.1, got 2/],
  ['{ name: ctr }', '{ name: "../ctr" }', /bundle/],
];

test('parser and JSON Schema agree', () => {
  for (const text of [SMALL, FULL])
    assert.ok(validate(parse(text)), JSON.stringify(validate.errors));
  for (const [good, bad, message] of BAD) {
    const text = SMALL.replace(good, bad);
    assert.throws(() => parseControllerConfig(text, 'controller.yaml'), message, text);
    assert.ok(!validate(parse(text)), text);
  }
});
