/**
 * A small S3: objects in memory, path-style, with what a repository relies on. Range, ETag and
 * If-Match, If-None-Match (412), uploads in parts, lists in short pages; and faults that a test
 * asks for. It checks no signature of a request.
 */
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { onTestEnd } from './fixtures.ts';

interface StoredFile {
  readonly body: Buffer;
  readonly etag: string;
  readonly writer: string | undefined;
  modifiedMs: number;
}

interface Upload {
  readonly key: string;
  readonly writer: string | undefined;
  startedMs: number;
  readonly parts: Map<number, Buffer>;
}

interface S3Faults {
  ignoresIfNoneMatch: boolean;
  /** Number of next writes whose response is lost after they were done. */
  loseAnswers: number;
  /** Number of next writes that get 409, as if another was in progress. */
  conflicts: number;
  /** Number of next bodies that end after half of their bytes. */
  cut: number;
  /** Response to every listing. */
  list: string | undefined;
  /** Answered to everything. */
  status: number | undefined;
}

const PAGE = 3;

export class FakeS3Server {
  readonly objects: Map<string, StoredFile> = new Map();
  readonly uploads: Map<string, Upload> = new Map();
  readonly requests: string[] = [];
  readonly faults: S3Faults = {
    ignoresIfNoneMatch: false,
    loseAnswers: 0,
    conflicts: 0,
    cut: 0,
    list: undefined,
    status: undefined,
  };
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => {
      this.#answer(request, response).catch(() => response.destroy());
    });
  }

  static async start(t: TestContext): Promise<FakeS3Server> {
    const server = new FakeS3Server();
    await new Promise<void>((resolve) => server.#server.listen(0, '127.0.0.1', resolve));
    onTestEnd(t, () => {
      server.#server.closeAllConnections();
      server.#server.close();
    });
    return server;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** As `openRepository` takes it. */
  get url(): string {
    return `s3://bucket/models?endpoint=${this.endpoint}&region=us-east-1`;
  }

  /** Makes everything older, as the store sees it. */
  age(ms: number): void {
    for (const object of this.objects.values()) object.modifiedMs -= ms;
    for (const upload of this.uploads.values()) upload.startedMs -= ms;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '', this.endpoint);
    const query = url.searchParams;
    const [, bucket, ...rest] = decodeURIComponent(url.pathname).split('/');
    const key = rest.join('/');
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    this.requests.push(
      `${request.method} ${key}${url.search === '' ? '' : ` ${[...query.keys()]}`}`,
    );
    const { status } = this.faults;
    if (status !== undefined) {
      refuse(response, status, 'Fault');
      return;
    }
    if (bucket !== 'bucket') {
      refuse(response, 404, 'NoSuchBucket');
      return;
    }
    if (key === '') {
      this.#answerBucket(query, response);
      return;
    }
    if (request.method === 'GET' || request.method === 'HEAD')
      return this.#get(key, request, response);
    if (request.method === 'DELETE') {
      const id = query.get('uploadId');
      if (id === null) this.objects.delete(key);
      else this.uploads.delete(id);
      response.writeHead(204).end();
      return;
    }
    this.#write(key, query, request, body, response);
  }

  #write(
    key: string,
    query: URLSearchParams,
    request: IncomingMessage,
    body: Buffer,
    response: ServerResponse,
  ): void {
    const writer = request.headers['x-amz-meta-writer'] as string | undefined;
    const id = query.get('uploadId');
    if (query.has('uploads')) {
      const newId = `upload-${this.requests.length}`;
      this.uploads.set(newId, { key, writer, startedMs: Date.now(), parts: new Map() });
      xml(
        response,
        `<InitiateMultipartUploadResult><UploadId>${newId}</UploadId>` +
          '</InitiateMultipartUploadResult>',
      );
      return;
    }
    const upload = id === null ? undefined : this.uploads.get(id);
    if (id !== null && upload === undefined) {
      refuse(response, 404, 'NoSuchUpload');
      return;
    }
    if (upload !== undefined && query.has('partNumber')) {
      upload.parts.set(Number(query.get('partNumber')), body);
      response.writeHead(200, { etag: computeEtag(body) }).end();
      return;
    }
    if (this.faults.conflicts > 0) {
      this.faults.conflicts -= 1;
      refuse(response, 409, 'ConditionalRequestConflict');
      return;
    }
    const isConditional = request.headers['if-none-match'] === '*';
    if (isConditional && !this.faults.ignoresIfNoneMatch && this.objects.has(key)) {
      refuse(response, 412, 'PreconditionFailed');
      return;
    }
    this.#store(key, id, upload, body, writer, response);
  }

  #store(
    key: string,
    id: string | null,
    upload: Upload | undefined,
    body: Buffer,
    writer: string | undefined,
    response: ServerResponse,
  ): void {
    const parts = [...(upload?.parts ?? [])].sort(([a], [b]) => a - b).map(([, part]) => part);
    const whole = upload === undefined ? body : Buffer.concat(parts);
    const etag = computeEtag(whole);
    const by = upload === undefined ? writer : upload.writer;
    this.objects.set(key, { body: whole, etag, writer: by, modifiedMs: Date.now() });
    if (id !== null) this.uploads.delete(id);
    if (this.faults.loseAnswers > 0) {
      this.faults.loseAnswers -= 1;
      response.destroy();
    } else if (upload === undefined) {
      response.writeHead(200, { etag }).end();
    } else {
      xml(
        response,
        `<CompleteMultipartUploadResult><ETag>${escapeXml(etag)}</ETag>` +
          '</CompleteMultipartUploadResult>',
      );
    }
  }

  #get(key: string, request: IncomingMessage, response: ServerResponse): void {
    const object = this.objects.get(key);
    if (object === undefined) {
      refuse(response, 404, 'NoSuchKey');
      return;
    }
    const { body, etag, writer, modifiedMs } = object;
    if ((request.headers['if-match'] ?? etag) !== etag) {
      refuse(response, 412, 'PreconditionFailed');
      return;
    }
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '');
    const start = Number(range?.[1] ?? 0);
    const end = Math.min(Number(range?.[2] ?? body.length), body.length - 1);
    if (range !== null && start >= body.length) {
      refuse(response, 416, 'InvalidRange');
      return;
    }
    response.writeHead(range === null ? 200 : 206, {
      etag,
      'content-length': end - start + 1,
      'last-modified': new Date(modifiedMs).toUTCString(),
      ...(writer === undefined ? {} : { 'x-amz-meta-writer': writer }),
      ...(range === null ? {} : { 'content-range': `bytes ${start}-${end}/${body.length}` }),
    });
    const piece = body.subarray(start, end + 1);
    if (request.method === 'HEAD') response.end();
    else if (this.faults.cut > 0) {
      this.faults.cut -= 1;
      response.write(piece.subarray(0, piece.length >> 1), () => response.destroy());
    } else response.end(piece);
  }

  #answerBucket(query: URLSearchParams, response: ServerResponse): void {
    if (this.faults.list !== undefined) {
      xml(response, this.faults.list);
      return;
    }
    const prefix = query.get('prefix') ?? '';
    if (query.has('uploads')) {
      this.#listUploads(prefix, query, response);
      return;
    }
    const found = this.#listed(prefix, query.get('delimiter') ?? '');
    const after = query.get('continuation-token') ?? '';
    const left = found.filter((item) => item.replace(/^d:|^o:/, '') > after);
    const page = left.slice(0, PAGE);
    const last = page.at(-1)?.slice(2) ?? '';
    const more =
      left.length > PAGE ? `<NextContinuationToken>${escapeXml(last)}</NextContinuationToken>` : '';
    const items = page.map((item) => this.#listItem(item));
    xml(
      response,
      `<ListBucketResult><IsTruncated>${left.length > PAGE}</IsTruncated>` +
        `${more}${items.join('')}</ListBucketResult>`,
    );
  }

  #listUploads(prefix: string, query: URLSearchParams, response: ServerResponse): void {
    const place = (key: string, id: string): string => `${key}\n${id}`;
    const after = place(query.get('key-marker') ?? '', query.get('upload-id-marker') ?? '');
    const left = [...this.uploads]
      .map(([id, { key, startedMs }]) => ({ id, key, startedMs, at: place(key, id) }))
      .filter(({ key, at }) => key.startsWith(prefix) && at > after)
      .sort((a, b) => (a.at < b.at ? -1 : 1));
    const page = left.slice(0, PAGE);
    const last = page.at(-1);
    const more =
      last === undefined || left.length <= PAGE
        ? '<IsTruncated>false</IsTruncated>'
        : `<IsTruncated>true</IsTruncated><NextKeyMarker>${escapeXml(last.key)}</NextKeyMarker>` +
          `<NextUploadIdMarker>${last.id}</NextUploadIdMarker>`;
    const items = page.map(
      ({ id, key, startedMs }) =>
        `<Upload><Key>${escapeXml(key)}</Key><UploadId>${id}</UploadId>` +
        `<Initiated>${new Date(startedMs).toISOString()}</Initiated></Upload>`,
    );
    xml(
      response,
      `<ListMultipartUploadsResult>${more}${items.join('')}</ListMultipartUploadsResult>`,
    );
  }

  /** "o:<key>" and "d:<prefix>", in the order of keys. */
  #listed(prefix: string, delimiter: string): string[] {
    const found = new Set<string>();
    for (const key of [...this.objects.keys()].sort()) {
      if (!key.startsWith(prefix)) continue;
      const at = delimiter === '' ? -1 : key.indexOf(delimiter, prefix.length);
      found.add(at < 0 ? `o:${key}` : `d:${key.slice(0, at + 1)}`);
    }
    return [...found];
  }

  #listItem(item: string): string {
    const key = item.slice(2);
    const object = this.objects.get(key);
    if (item.startsWith('d:') || object === undefined) {
      return `<CommonPrefixes><Prefix>${escapeXml(key)}</Prefix></CommonPrefixes>`;
    }
    const at = new Date(object.modifiedMs).toISOString();
    const size = `<Size>${object.body.length}</Size>`;
    const modified = `<LastModified>${at}</LastModified>`;
    return `<Contents><Key>${escapeXml(key)}</Key>${size}${modified}</Contents>`;
  }
}

function computeEtag(body: Buffer): string {
  return `"${createHash('md5').update(body).digest('hex')}"`;
}

function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}

function xml(response: ServerResponse, body: string): void {
  response
    .writeHead(200, { 'content-type': 'application/xml' })
    .end(`<?xml version="1.0" encoding="UTF-8"?>${body}`);
}

function refuse(response: ServerResponse, status: number, code: string): void {
  response
    .writeHead(status, { 'content-type': 'application/xml' })
    .end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>stand-in</Message></Error>`);
}
