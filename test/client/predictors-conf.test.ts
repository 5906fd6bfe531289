/** predictors.prototxt and serving_client_conf.prototxt: what is read, listed and refused. */
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { readClientConf } from '../../lib/client/client-conf.ts';
import { chooseVariant } from '../../lib/client/predictor-variants.ts';
import { parsePredictorsConf, VARIANT_DEFAULTS } from '../../lib/client/predictors-conf.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

/** The file of Paddle Serving's documentation, with two variants that override some fields. */
const SAMPLE = `
default_variant_conf {
  tag: "default"
  connection_conf {
    connect_timeout_ms: 2000
    rpc_timeout_ms: 20000
    connect_retry_count: 2
    max_connection_per_host: 100
    hedge_request_timeout_ms: -1
    hedge_fetch_retry_count: 2
    connection_type: "pooled"
  }
  naming_conf {
    cluster_filter_strategy: "Default"  # Not used for now
    load_balance_strategy: "la"
  }
  rpc_parameter {
    compress_type: 0
    package_size: 20
    protocol: "baidu_std"
    max_channel_per_request: 3
  }
}
predictors {
  name: "ximage"
  service_name: "baidu.paddle_serving.predictor.image_classification.ImageClassifyService"
  endpoint_router: "WeightedRandomRender"
  weighted_random_render_conf { variant_weight_list: "50 | 30" }
  variants {
    tag: "var1"
    naming_conf { cluster: "list://127.0.0.1:8010, 127.0.0.1:8011" }
  }
  variants {
    tag: "var2"
    connection_conf { rpc_timeout_ms: 100 hedge_request_timeout_ms: 5 connection_type: 'short' }
    naming_conf { cluster: "list://127.0.0.1:8012" load_balance_strategy: "c_md5" }
    rpc_parameter { protocol: "h2:grpc" compress_type: 2 }
  }
}
predictors { variants { naming_conf { cluster: "dns://models:8010" } } }
`;

test('variants inherit every field that they do not set, and list what has no effect', () => {
  const { predictors, ignored } = parsePredictorsConf(SAMPLE, 'p.prototxt');
  const [first, second] = predictors;
  const general = 'baidu.paddle_serving.predictor.general_model.GeneralModelService';
  const inherited = { ...VARIANT_DEFAULTS, tag: 'default' };
  assert.deepEqual(first?.weights, [50, 30]);
  assert.deepEqual(first?.variants, [
    { ...inherited, tag: 'var1', cluster: 'list://127.0.0.1:8010, 127.0.0.1:8011' },
    {
      ...inherited,
      tag: 'var2',
      cluster: 'list://127.0.0.1:8012',
      loadBalancer: 'c_md5',
      rpcTimeoutMs: 100,
      hedgeMs: 5,
      connectionType: 'short',
      protocol: 'grpc',
      compressType: 2,
    },
  ]);
  assert.deepEqual(
    [second?.name, second?.service, second?.variants[0]?.tag, second?.weights],
    ['general_model', general, 'default', [1]],
  );
  const reason = 'the original SDK never used it';
  assert.deepEqual(ignored, [{ setting: 'p.prototxt:14 cluster_filter_strategy', reason }]);
});

test('unknown fields and values are refused where they stand, with the nearest name', () => {
  const refuse = (from: string, to: string, message: RegExp): void => {
    assert.ok(SAMPLE.includes(from), from);
    assert.throws(
      () => parsePredictorsConf(SAMPLE.replace(from, to), 'p.prototxt'),
      (error) => {
        assert.ok(error instanceof CubeError && error.code === 'INVALID_ARGUMENT');
        assert.match(error.message, /^p\.prototxt:\d+:\d+: /);
        assert.match(error.message, message);
        return true;
      },
    );
  };
  refuse(
    'rpc_timeout_ms: 100',
    'rpc_timeout: 100',
    /unknown field rpc_timeout; .*"rpc_timeout_ms"/,
  );
  refuse('rpc_timeout_ms: 100', 'rpc_timeout_ms: 0', /expected an integer in 1\.\./);
  refuse(
    '"c_md5"',
    '"c_md6"',
    /load_balance_strategy: unknown value "c_md6"; did you mean "c_md5"/,
  );
  refuse('"h2:grpc"', '"h2"', /protocol: unknown value "h2"/);
  refuse('compress_type: 2', 'compress_type: 5', /compress_type: expected an integer in 0\.\.4/);
  refuse('compress_type: 2', 'compress_type: 1', /http and h2:grpc allow 0 and 2/);
  refuse("'short'", "'pool'", /connection_type: unknown value "pool"; did you mean "pooled"/);
  refuse('"50 | 30"', '"50"', /1 weights for 2 variants/);
  refuse('"50 | 30"', '"50|x"', /expected weights like "50\|30\|20", got "x"/);
  refuse('"50 | 30"', '"0|0"', /all weights are 0/);
  refuse('"WeightedRandomRender"', '"Other"', /endpoint_router: expected WeightedRandomRender/);
  refuse('cluster: "list://127.0.0.1:8012"', '', /variant var2: naming_conf has no cluster/);
  refuse('name: "ximage"', 'name: "general_model"', /two predictors are named general_model/);
  refuse('predictors {\n', 'predictor {\n', /unknown field predictor; did you mean "predictors"/);
});

test('variants are chosen in proportion to their weights', () => {
  const weights = fc.array(fc.nat(100), { minLength: 1, maxLength: 6 });
  fc.assert(
    fc.property(
      weights.filter((list) => list.some((weight) => weight > 0)),
      (list) => {
        const total = list.reduce((sum, weight) => sum + weight, 0);
        const counts = list.map(() => 0);
        for (let i = 0; i < total; i++) counts[chooseVariant(list, (i + 0.5) / total)]!++;
        assert.deepEqual(counts, list);
      },
    ),
  );
});

test('serving_client_conf.prototxt gives names, aliases, types and shapes', (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'client'));
  const path = join(folder, 'client', 'serving_client_conf.prototxt');
  writeFileSync(
    path,
    `feed_var { name: "embedding_0.tmp_0" alias_name: "sparse_0" is_lod_tensor: true
       feed_type: 0 shape: -1 }
     feed_var { name: "dense" is_lod_tensor: false feed_type: 1 shape: 13 }
     fetch_var { name: "save_infer_model/scale_0" alias_name: "prob" fetch_type: 1 shape: 2 }`,
  );
  const expected = {
    feeds: [
      {
        name: 'embedding_0.tmp_0',
        alias: 'sparse_0',
        isLod: true,
        dataType: 'INT64',
        shape: [-1],
      },
      { name: 'dense', alias: 'dense', isLod: false, dataType: 'FP32', shape: [13] },
    ],
    fetches: [
      {
        name: 'save_infer_model/scale_0',
        alias: 'prob',
        isLod: false,
        dataType: 'FP32',
        shape: [2],
      },
    ],
  };
  assert.deepEqual(readClientConf(path), expected);
  assert.deepEqual(readClientConf(join(folder, 'client')), expected);
  assert.throws(() => readClientConf(join(folder, 'nothing')), /nothing: no such file/);
  writeFileSync(path, 'feed_var { name: "x" feed_typ: 1 }');
  assert.throws(() => readClientConf(path), /:1:22: unknown field feed_typ; did you mean/);
  writeFileSync(path, 'feed_var { name: "x" feed_type: 19 }');
  assert.throws(() => readClientConf(path), /feed_type: unknown type 19/);
});
