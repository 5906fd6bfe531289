/**
 * A pipeline of one op with a local predictor against the protocols without a pipeline: the same
 * process, model and rows, in rounds that alternate.
 */
import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../../lib/platform/files.ts';
import { createSubject, findMedian, runRounds, type Subject } from './alternating-rounds.ts';
import { pinSelf } from './cube-server-process.ts';
import { BUNDLE, createRequestRows, publishModel } from './demo-model.ts';
import { KEYS_PROTOCOL, PIPELINE_PROTOCOLS, PROTOCOLS, TSV_PROTOCOL } from './protocol-callers.ts';
import { startServing } from './serving-process.ts';

const CLIENT_CORE = 1;
const SHARD_NUM = 2;
const REQUESTS_MAX = 1_000;
const LOADS = [
  { rows: 64, inFlight: 8, goal: 85 },
  { rows: 1, inFlight: 64, goal: 70 },
];

/** The default ops hand the request's values to the predictor, and its outputs to the response. */
const SERVICE = `import { Op, RequestOp, ResponseOp } from 'hypercube/pipeline';
const rank = new Op({ name: 'rank', inputs: [new RequestOp()] });
export default { name: 'pipeline', ops: new ResponseOp({ inputs: [rank] }), packTensors: true };
`;
const CONFIG = `rpc_port: 0
op:
  rank:
    concurrency: 64
    local_service_conf:
      client_type: local_predictor
      model_config: ${BUNDLE}
`;

function writePipeline(folder: string): string[] {
  const service = join(folder, 'service.mjs');
  const config = join(folder, 'config.yml');
  replaceFile(service, SERVICE);
  replaceFile(config, CONFIG);
  return ['--pipeline', service, '--config', config, '--store', 'memory'];
}

/** Prints what a pipeline answers of the rate of each protocol. The service is on one core. */
export async function printPipelineServing(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  let stop: (() => Promise<void>) | undefined;
  try {
    await publishModel(folder, SHARD_NUM);
    const service = await startServing(folder, writePipeline(folder));
    stop = () => service.stop();
    for (const { rows: rowCount, inFlight, goal } of LOADS) {
      const rows = createRequestRows(folder, rowCount, REQUESTS_MAX);
      const pairs = [TSV_PROTOCOL, KEYS_PROTOCOL].map((name) =>
        [PROTOCOLS, PIPELINE_PROTOCOLS].map((protocols) => {
          const connector = requireDefined(protocols.get(name), name);
          return createSubject(name, service, { connector, rows, inFlight });
        }),
      );
      await runRounds(pairs.flat());
      for (const pair of pairs) printPair(pair as [Subject, Subject], rowCount, goal);
    }
  } finally {
    await stop?.();
    removePath(folder);
  }
}

function printPair([direct, pipeline]: [Subject, Subject], rows: number, goal: number): void {
  const share = (a: number, b: number): string => `${((100 * a) / b).toFixed(0)} %`;
  const [directMicros, micros] = [findMedian(direct.micros), findMedian(pipeline.micros)];
  const [directRate, rate] = [findMedian(direct.perSecond), findMedian(pipeline.perSecond)];
  process.stdout.write(
    `${direct.name}, rows: ${rows}: ${directRate.toFixed(0)} requests/s, pipeline ` +
      `${rate.toFixed(0)}: ${share(rate, directRate)} (goal ${goal} %); CPU ` +
      `${directMicros.toFixed(0)} µs, ${micros.toFixed(0)} µs: ${share(directMicros, micros)}\n`,
  );
}
