/** Workflows of a conf folder on the pipeline engine: the example, and what is refused. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../lib/platform/logs.ts';
import { locateConfFolder, readPaddleConf } from '../../../serving/config/paddle-conf.ts';
import { readProtoFiles } from '../../../serving/config/proto-file.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import {
  createTensor,
  Op,
  type OpInputs,
  type OpValues,
  type PipelineTensor,
} from '../../../serving/pipeline/index.ts';
import { loadOperators } from '../../../serving/pipeline/module.ts';
import { type Serving, startServing } from '../../../serving/server.ts';
import type { WorkflowsDefinition } from '../../../serving/workflow-service.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { waitFor } from '../../support/processes.ts';
import { multiply, serve as serveModels } from '../support/plain-models.ts';

const EXAMPLE = join('examples', 'pipeline-ctr');

type Operators = WorkflowsDefinition['operators'];

async function serve(
  t: TestContext,
  folder: string,
  proto: string,
  operators: Operators,
): Promise<Serving> {
  const { settings, workflowServices } = readPaddleConf(locateConfFolder(folder), true);
  assert.ok(workflowServices);
  const serving = await startServing({
    config: completeConfig({ ...settings, port: 0 }),
    logger: createLogger('test', { level: 'silent' }),
    workflows: { ...workflowServices, messages: readProtoFiles([proto]), operators },
  });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  await waitFor('the workflows are ready', async () => (await fetch(`${url}/readyz`)).ok);
  return serving;
}

async function post(address: string, path: string, body: object) {
  const reply = await fetch(`http://${address}${path}`, {
    method: 'POST',
    body: JSON.stringify(body),
  });
  return { status: reply.status, body: (await reply.json()) as Record<string, unknown> };
}

test('the example answers Criteo rows by the workflow that the request chooses', async (t) => {
  const operators = await loadOperators(join(EXAMPLE, 'ops.ts'));
  const proto = join(EXAMPLE, 'ctr.proto');
  const { address } = await serve(t, join(EXAMPLE, 'conf'), proto, operators);
  const rows = readFileSync('data/demo/rows.tsv', 'utf8').split('\n').slice(0, 8);
  const ask = (models?: string) => post(address, '/CtrService/inference', { rows, models });
  const both = await ask();
  assert.equal(both.status, 200, JSON.stringify(both.body));
  assert.equal(both.body['models'], 'both');
  const dense = await ask('dense');
  assert.equal(dense.body['models'], 'dense');
  const scores = both.body['click'] as number[];
  assert.equal(scores.length, 8);
  assert.ok(scores.every((score) => score > 0 && score < 1));
  assert.notDeepEqual(dense.body['click'], scores);
  const unknown = await ask('all');
  assert.equal(unknown.status, 400);
  assert.match(
    String(unknown.body['error']),
    /no workflow for "all" \(values: "", "both", "dense"\)/,
  );
  const metrics = await (await fetch(`http://${address}/metrics`)).text();
  assert.match(metrics, /hypercube_pipeline_op_requests_total\{op="both\.dnn"\} 1\n/);
});

const PROTO = `syntax = "proto2";
message Request { required int32 a = 1; repeated int32 list = 2; }
message Response { optional int32 a = 1; repeated int32 list = 2; optional string by = 3; }
service EchoService { rpc inference(Request) returns (Response); }
`;

/** A conf folder without used engines. */
function writeConf(t: TestContext, services: string, workflows: string): [string, string] {
  const root = temporaryFolder(t);
  const folder = join(root, 'conf');
  cpSync(join(EXAMPLE, 'conf'), folder, { recursive: true });
  writeFileSync(join(folder, 'service.prototxt'), services);
  writeFileSync(join(folder, 'workflow.prototxt'), workflows);
  const proto = join(root, 'echo.proto');
  writeFileSync(proto, PROTO);
  return [folder, proto];
}

interface Numbers {
  readonly a: number;
  readonly list: Int32Array;
}

class AddOp extends Op {
  override preprocess(inputs: OpInputs) {
    const [values] = Object.values(inputs) as unknown as Numbers[];
    // Allowed by RW only.
    values!.list[0] = 100;
    return { a: values!.a + 1, list: values!.list };
  }
}

class JoinOp extends Op {
  override preprocess(inputs: OpInputs) {
    const all = [inputs['add'], inputs['read']] as unknown as Numbers[];
    return {
      a: all.reduce((sum, { a }) => sum + a, 0),
      list: all.flatMap(({ list }) => [...list]),
    };
  }
}

test('responses of several workflows are merged; RW nodes get copies', async (t) => {
  const echo = 'workflows { name: "echo" nodes { name: "e" type: "CommonEchoOp" } }';
  const sum = `workflows { name: "sum" workflow_type: "Parallel"
    nodes { name: "read" type: "GeneralReaderOp" }
    nodes { name: "add" type: "AddOp" dependencies { name: "read" mode: "RW" } }
    nodes { name: "join" type: "JoinOp" dependencies { name: "add" mode: "RO" }
      dependencies { name: "read" mode: "RO" } } }`;
  const services = 'services { name: "EchoService" workflows: "echo" workflows: "sum" }';
  const [folder, proto] = writeConf(t, services, `${echo} ${sum}`);
  const operators: Operators = new Map(Object.entries({ AddOp, JoinOp }));
  const { address } = await serve(t, folder, proto, operators);
  const { status, body } = await post(address, '/EchoService/inference', { a: 2, list: [7] });
  assert.equal(status, 200, JSON.stringify(body));
  // The last response has the single fields, lists are joined.
  assert.deepEqual(body, { a: 5, list: [7, 100, 7] });
  const wrong = await post(address, '/EchoService/inference', { list: [7] });
  assert.match(String(wrong.body['error']), /body: a: the field is required/);
});

/** Waits until it is resumed, and writes down when it begins and ends. */
const journal: string[] = [];
class StepOp extends Op {
  override async process(feeds: readonly OpValues[]) {
    journal.push(`${this.name} begins`);
    await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    journal.push(`${this.name} ends`);
    return feeds;
  }
}

class LastOp extends Op {
  override preprocess(inputs: OpInputs) {
    return { a: 1, by: Object.keys(inputs).join(' ') };
  }
}

test('a Sequence runs nodes and workflows one after the other, Parallel at a time', async (t) => {
  const workflow = (name: string, type: string) => {
    const steps = ['x', 'y', 'z'].map((step) => `nodes { name: "${name}${step}" type: "StepOp" }`);
    // A node that the file has before its dependencies, and that does not read the third one.
    const edges = ['x', 'y', 'z'].map((step) => {
      return `dependencies { name: "${name}${step}" mode: "RO" }`;
    });
    return `workflows { name: "${name}" workflow_type: "${type}"
      nodes { name: "${name}last" type: "LastOp" ${edges.join(' ')} } ${steps.join(' ')} }`;
  };
  const services = `services { name: "EchoService" workflows: "s" }
    services { name: "TwoService" workflows: "p" workflows: "q" }`;
  const workflows = [
    workflow('s', 'Sequence'),
    workflow('p', 'Parallel'),
    workflow('q', 'Parallel'),
  ];
  const [folder, proto] = writeConf(t, services, workflows.join('\n'));
  const two = 'service TwoService { rpc inference(Request) returns (Response); }';
  writeFileSync(proto, `${PROTO}${two}`);
  const operators: Operators = new Map(Object.entries({ StepOp, LastOp }));
  const { address } = await serve(t, folder, proto, operators);
  const ask = async (service: string) => {
    journal.length = 0;
    return (await post(address, `/${service}/inference`, { a: 1 })).body;
  };
  // The order of the edges; no input that is no dependency.
  assert.deepEqual(await ask('EchoService'), { a: 1, by: 'sx sy sz', list: [] });
  const turns = ['sx', 'sy', 'sz'].flatMap((name) => [`${name} begins`, `${name} ends`]);
  assert.deepEqual(journal, turns);
  assert.equal((await ask('TwoService'))['by'], 'qx qy qz');
  // All nodes of both workflows have begun when the first one ends.
  assert.deepEqual(
    journal.slice(0, 6).toSorted(),
    ['px', 'py', 'pz', 'qx', 'qy', 'qz'].map((name) => `${name} begins`),
  );
});

class ToTensorOp extends Op {
  override preprocess(inputs: OpInputs) {
    const { list } = Object.values(inputs)[0] as unknown as Numbers;
    return { x: createTensor('FP32', [list.length, 1], Float32Array.from(list)) };
  }
}

class ToListOp extends Op {
  override preprocess(inputs: OpInputs) {
    const { y } = Object.values(inputs)[0] as unknown as { y: PipelineTensor };
    return { a: y.shape[0], list: [...(y.data as Float32Array)] };
  }
}

test('GeneralRemoteOp predicts with the servers of its address', async (t) => {
  const { serving: remote } = await serveModels(t, { triple: multiply(3) }, [], true);
  const servers = `address: "${new URL(remote.url).host}" address: "127.0.0.1:1"`;
  const node = (name: string, type: string, from: string, more = ''): string =>
    `nodes { name: "${name}" type: "${type}" ${more}
      dependencies { name: "${from}" mode: "RO" } }`;
  const workflow = `workflows { name: "w" nodes { name: "read" type: "GeneralReaderOp" }
    ${node('tensor', 'ToTensorOp', 'read')}
    ${node('remote', 'GeneralRemoteOp', 'tensor', servers)}
    ${node('list', 'ToListOp', 'remote')} ${node('respond', 'GeneralResponseOp', 'list')} }`;
  const service = 'services { name: "EchoService" workflows: "w" }';
  const [folder, proto] = writeConf(t, service, workflow);
  const operators: Operators = new Map(Object.entries({ ToTensorOp, ToListOp }));
  const { address } = await serve(t, folder, proto, operators);
  const ask = () => post(address, '/EchoService/inference', { a: 0, list: [1, 2, 5] });
  // One of two servers is dead, and no request sees it.
  for (let i = 0; i < 4; i++) {
    const { status, body } = await ask();
    assert.equal(status, 200, JSON.stringify(body));
    assert.deepEqual(body, { a: 3, list: [3, 6, 15] });
  }
  remote.child.kill('SIGKILL');
  await once(remote.child, 'close');
  const { status, body } = await ask();
  assert.equal(status, 503, JSON.stringify(body));
  assert.match(String(body['error']), /op remote: /);
});

test('graphs and names that do not fit are refused by node', async (t) => {
  const node = (name: string, type: string, from = '') => {
    const edge = from === '' ? '' : `dependencies { name: "${from}" mode: "RO" }`;
    return `nodes { name: "${name}" type: "${type}" ${edge} }`;
  };
  const cases: readonly (readonly [string, RegExp])[] = [
    [node('a', 'AdOp'), /workflow w: node a: there is no operator AdOp; did you mean "AddOp"/],
    [node('a', 'AddOp', 'b'), /node b: there is no such node/],
    [node('a', 'AddOp') + node('b', 'AddOp'), /2 nodes that no other node reads \(a, b\)/],
    [node('a', 'AddOp', 'b') + node('b', 'AddOp', 'a') + node('c', 'AddOp'), /depends on itself/],
    [node('a', 'GeneralRemoteOp'), /GeneralRemoteOp needs an address/],
    [node('a', 'GeneralInferOp'), /no engine is named a/],
    [node('a', 'AddOp') + node('a', 'AddOp'), /two nodes are named a/],
  ];
  for (const [nodes, message] of cases) {
    const services = 'services { name: "EchoService" workflows: "w" }';
    const [folder, proto] = writeConf(t, services, `workflows { name: "w" ${nodes} }`);
    await assert.rejects(serve(t, folder, proto, new Map(Object.entries({ AddOp }))), message);
  }
  const other = 'services { name: "Other" workflows: "w" }';
  const [folder, proto] = writeConf(t, other, `workflows { name: "w" ${node('a', 'AddOp')} }`);
  await assert.rejects(
    serve(t, folder, proto, new Map(Object.entries({ AddOp }))),
    /service Other: no service of this name in the \.proto files/,
  );
});
