/**
 * Services of users' own .proto files, the examples of examples/pipeline-messages: gRPC, baidu_std,
 * HTTP with JSON and with protobuf, called with protobufjs; hostile requests.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import protobuf from 'protobufjs';
import { createLogger } from '../../../lib/platform/logs.ts';
import { Channel } from '../../../lib/rpc/channel.ts';
import { readPipelineConfig } from '../../../serving/config/pipeline-config.ts';
import { readPipelineModels } from '../../../serving/config/pipeline-models.ts';
import { readProtoFiles } from '../../../serving/config/proto-file.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import { loadPipelineModule } from '../../../serving/pipeline/module.ts';
import { startServing } from '../../../serving/server.ts';
import { RawGrpcClient } from '../../rpc/support/grpc-client.ts';
import { waitFor } from '../../support/processes.ts';

const FOLDER = join('examples', 'pipeline-messages');

interface Reply {
  /** Undefined: the call succeeded. */
  readonly error?: string;
  readonly values: Record<string, unknown>;
}

type Call = (values: Record<string, unknown>) => Promise<Reply>;

interface Served {
  readonly url: string;
  readonly calls: ReadonlyMap<string, Call>;
  readonly senders: ReadonlyMap<string, Sender>;
}

/** Sends bytes and returns the answer's, or the text of an error. */
type Sender = (bytes: Uint8Array) => Promise<Uint8Array | string>;

/** Starts an example. @returns host:port */
async function start(t: TestContext, name: string): Promise<string> {
  const path = join(FOLDER, `${name}.yml`);
  const config = readPipelineConfig(path);
  const { models, modelOfOp } = readPipelineModels(config, path, []);
  const serving = await startServing({
    config: completeConfig({
      port: 0,
      hasPipeline: true,
      models: models.map((model) => ({ ...model, instances: 1 })),
    }),
    logger: createLogger('test', { level: 'silent' }),
    pipeline: {
      config,
      modelOfOp,
      module: await loadPipelineModule(join(FOLDER, `${name}.ts`)),
      variables: new Map(),
      messages: readProtoFiles([join(FOLDER, `${name}.proto`)]),
    },
  });
  t.after(() => serving.stop());
  const { address } = serving;
  await waitFor('the service is ready', async () => (await fetch(`http://${address}/readyz`)).ok);
  return address;
}

function connect(
  t: TestContext,
  address: string,
  service: string,
  method: string,
): ReadonlyMap<string, Sender> {
  const grpc = new RawGrpcClient(Number(address.split(':').at(-1)));
  const channel = new Channel(address);
  t.after(() => {
    grpc.close();
    channel.close();
  });
  return new Map<string, Sender>([
    [
      'grpc',
      async (bytes) => {
        const result = await grpc.call(`/${service}/${method}`, Buffer.from(bytes), 60_000);
        return result.code === 0 ? result.bytes : result.details;
      },
    ],
    [
      'baidu_std',
      async (bytes) => {
        const none = new Uint8Array(0);
        try {
          return (await channel.call(service, method, bytes, none, 60_000)).payload;
        } catch (error) {
          return (error as Error).message;
        }
      },
    ],
    [
      'http protobuf',
      async (bytes) => {
        const reply = await fetch(`http://${address}/${service}/${method}`, {
          method: 'POST',
          headers: { 'content-type': 'application/proto' },
          body: bytes as Uint8Array<ArrayBuffer>,
        });
        const body = Buffer.from(await reply.arrayBuffer());
        return reply.ok ? body : String(JSON.parse(String(body)).error);
      },
    ],
  ]);
}

async function serve(
  t: TestContext,
  name: string,
  service: string,
  method: string,
): Promise<Served> {
  const address = await start(t, name);
  const url = `http://${address}`;
  const senders = connect(t, address, service, method);
  const root = new protobuf.Root().loadSync(join(FOLDER, `${name}.proto`), { keepCase: true });
  const { requestType, responseType } = root.lookupService(service).methods[method]!;
  const dot = service.lastIndexOf('.');
  const request = root.lookupType(`${service.slice(0, dot)}.${requestType}`);
  const response = root.lookupType(`${service.slice(0, dot)}.${responseType}`);
  const toCall =
    (send: Sender): Call =>
    async (values) => {
      const answer = await send(request.encode(request.fromObject(values)).finish());
      if (typeof answer === 'string') return { error: answer, values: {} };
      const options = { enums: String, arrays: true };
      return { values: response.toObject(response.decode(answer), options) };
    };
  const calls = new Map([...senders].map(([transport, send]) => [transport, toCall(send)]));
  calls.set('http json', async (values) => {
    const reply = await fetch(`${url}/${service.slice(dot + 1)}/${method}`, {
      method: 'POST',
      body: JSON.stringify(values),
    });
    const body = (await reply.json()) as Reply['values'];
    return reply.ok ? { values: body } : { error: String(body['error']), values: {} };
  });
  return { url, calls, senders };
}

test('the echo service answers over every transport, and names what is wrong', async (t) => {
  const { url, calls, senders } = await serve(t, 'echo', 'demo.EchoService', 'Echo');
  assert.deepEqual([...calls.keys()], ['grpc', 'baidu_std', 'http protobuf', 'http json']);
  for (const [name, call] of calls) {
    const { error, values } = await call({ text: 'hé', times: 2, scores: [0.5, 1.5] });
    assert.equal(error, undefined, name);
    assert.deepEqual({ ...values }, { texts: ['hé', 'hé'], sum: 2 }, name);
    const product = await call({ times: 101 });
    assert.match(product.error ?? '', /product error 51: times is 101; at most 100$/, name);
  }
  for (const [name, send] of senders) {
    const notText = await send(Uint8Array.of(0x0a, 0x01, 0xff));
    assert.match(String(notText), /EchoRequest: text: /, name);
    const fixed = await send(Uint8Array.of(0x15, 0, 0, 0, 0));
    assert.match(String(fixed), /times: .*wire type/, name);
    // Fields that it does not know are those of newer clients.
    assert.ok((await send(Uint8Array.of(0x78, 0x01))) instanceof Uint8Array, name);
  }
  const post = async (path: string, body: string) => {
    const reply = await fetch(`${url}${path}`, { method: 'POST', body });
    return { reply, text: await reply.text() };
  };
  const wrong = await post('/EchoService/Echo', '{"scores": [1, "x"]}');
  assert.equal(wrong.reply.status, 400);
  assert.match(wrong.text, /body: scores\[1\]: expected a number/);
  const product = await post('/demo.EchoService/Echo', '{"times": 101}');
  assert.deepEqual(
    [product.reply.status, product.reply.headers.get('hypercube-err-no')],
    [400, '51'],
  );
  for (const path of ['/EchoService/echo', '/demo.Other/Echo', '/echo/prediction']) {
    assert.equal((await post(path, '{}')).reply.status, 404, path);
  }
  const deep = `${'{"text":'.repeat(50_000)}1${'}'.repeat(50_000)}`;
  assert.equal((await post('/EchoService/Echo', deep)).reply.status, 400);
  const document = (await (await fetch(`${url}/openapi.json`)).json()) as { paths: object };
  assert.ok('/EchoService/Echo' in document.paths && '/demo.EchoService/Echo' in document.paths);
});

test('the text service classifies with a model', async (t) => {
  const { url, calls } = await serve(t, 'text', 'demo.text.TextClassificationService', 'inference');
  for (const [name, call] of calls) {
    const { error, values } = await call({
      instances: [{ words: 'very good' }, { words: 'terrible and bad' }],
    });
    assert.equal(error, undefined, name);
    const { predictions } = values as { predictions: { positive: number; verdict: string }[] };
    assert.equal(predictions.length, 2);
    assert.deepEqual(
      predictions.map(({ verdict }) => verdict),
      predictions.map(({ positive }) => (positive > 0.5 ? 'POSITIVE' : 'NEGATIVE')),
    );
    assert.ok(predictions[0]!.positive > predictions[1]!.positive, name);
    const wordless = await call({ instances: [{ words: 'good' }, { words: '!' }] });
    assert.match(wordless.error ?? '', /instances\[1\]\.words has no word/, name);
  }
  const reply = await fetch(`${url}/TextClassificationService/inference`, {
    method: 'POST',
    body: '{"instances": [{"words": "good"}]}',
  });
  assert.match(reply.headers.get('hypercube-versions') ?? '', /^bow=\w+$/);
});
