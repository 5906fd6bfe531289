/**
 * Reads users' `.proto` files: the services that they define, with the types of their messages.
 * Imports start from the folder of the file that has them. Load this module only where such files
 * are given, because it loads protobufjs.
 */
import { dirname, resolve } from 'node:path';
import protobuf from 'protobufjs';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists } from '../../lib/platform/files.ts';
import {
  ARRAY_CLASSES,
  type EnumType,
  isArrayType,
  type MessageField,
  type MessageService,
  type MessageType,
  type ScalarType,
} from '../../proto/message-schema.ts';

/** Options of Paddle Serving's code generator, which mean nothing here. */
const PADDLE_OPTIONS = 'pds_option.proto';
const EMPTY = 'google.protobuf.Empty';
/** Their JSON form is not that of ordinary messages. */
const WELL_KNOWN = 'google.protobuf.';

/** The services of `.proto` files. */
export interface ProtoServices {
  readonly services: readonly MessageService[];
  /** The files in protobufjs' JSON form, for gRPC reflection. */
  readonly definitions: object;
}

/** @throws CubeError NOT_FOUND; INVALID_ARGUMENT, UNSUPPORTED naming file or type */
export function readProtoFiles(files: readonly string[]): ProtoServices {
  const root = loadRoot(files);
  const reader = new TypeReader();
  const found = listServices(root);
  const services = found.map((service) => reader.readService(service));
  if (services.length === 0) {
    throw invalid(`${files.join(', ')}: no service; define one with its request and response`);
  }
  return { services, definitions: root.toJSON() };
}

function loadRoot(files: readonly string[]): protobuf.Root {
  const root = new protobuf.Root();
  root.resolvePath = (origin, target) => {
    const path = origin === '' ? resolve(target) : resolve(dirname(origin), target);
    if (fileExists(path)) return path;
    if (target.startsWith('google/protobuf/')) return target;
    if (target.endsWith(PADDLE_OPTIONS)) return null;
    const place = origin === '' ? '' : `${origin}: import ${target}: `;
    throw new CubeError('NOT_FOUND', `${place}${path}: no such file`);
  };
  try {
    root.loadSync([...files], { keepCase: true });
    root.resolveAll();
  } catch (error) {
    if (error instanceof CubeError) throw error;
    const { message } = error instanceof Error ? error : new Error(String(error));
    throw invalid(`${files.join(', ')}: ${message}`);
  }
  return root;
}

function listServices(namespace: protobuf.NamespaceBase): protobuf.Service[] {
  return namespace.nestedArray.flatMap((nested) => {
    if (nested instanceof protobuf.Service) return [nested];
    return nested instanceof protobuf.Namespace ? listServices(nested) : [];
  });
}

class TypeReader {
  readonly #messages = new Map<protobuf.Type, MessageType>();
  readonly #enums = new Map<protobuf.Enum, EnumType>();

  readService(service: protobuf.Service): MessageService {
    const name = toName(service);
    const methods = service.methodsArray.map((method) => {
      if (method.requestStream === true || method.responseStream === true) {
        throw unsupported(`${name}/${method.name}: streams are not supported; use unary methods`);
      }
      method.resolve();
      const { resolvedRequestType: request, resolvedResponseType: response } = method;
      if (request === null || response === null) {
        throw invalid(`${name}/${method.name}: its request or response is no message`);
      }
      const types = { request: this.#readMessage(request), response: this.#readMessage(response) };
      return { name: method.name, ...types };
    });
    return { name, shortName: service.name, methods };
  }

  #readMessage(type: protobuf.Type): MessageType {
    const known = this.#messages.get(type);
    if (known !== undefined) return known;
    const name = toName(type);
    if (name.startsWith(WELL_KNOWN) && name !== EMPTY) {
      throw unsupported(`${name} is not supported; use numbers, text or a message of your own`);
    }
    const fields: MessageField[] = [];
    const byNumber = new Map<number, MessageField>();
    const byName = new Map<string, MessageField>();
    // Known before its fields are read: types may contain themselves.
    const message: MessageType = { kind: 'message', name, fields, byNumber, byName };
    this.#messages.set(type, message);
    for (const field of type.fieldsArray) {
      const read = this.#readField(field, `${name}.${field.name}`);
      fields.push(read);
      byNumber.set(read.number, read);
    }
    // A field goes before another one's camelCase name.
    for (const field of fields) byName.set(toCamelCase(field.name), field);
    for (const field of fields) byName.set(field.name, field);
    return message;
  }

  #readField(field: protobuf.Field, place: string): MessageField {
    const { name, id: number, partOf } = field;
    if (name === '__proto__') throw unsupported(`${place}: rename the field`);
    const type = this.#readType(field, place);
    const kind = field.map ? 'map' : field.repeated ? 'repeated' : 'single';
    const isMessage = typeof type !== 'string' && type.kind === 'message';
    const isSynthetic = partOf !== null && isProto3Optional(partOf);
    const hasPresence = isMessage || Boolean(field.hasPresence);
    const canPack = typeof type === 'string' ? type !== 'string' && type !== 'bytes' : !isMessage;
    return {
      name,
      number,
      type,
      kind,
      keyType: field instanceof protobuf.MapField ? (field.keyType as ScalarType) : undefined,
      isRequired: field.required,
      isPacked: canPack && field.packed,
      hasPresence,
      fallback: kind === 'single' ? readFallback(field, type, hasPresence) : undefined,
      oneof: partOf === null || isSynthetic ? undefined : partOf.name,
    };
  }

  #readType(field: protobuf.Field, place: string): MessageField['type'] {
    const { resolvedType } = field;
    if (resolvedType instanceof protobuf.Enum) return this.#readEnum(resolvedType);
    if (resolvedType instanceof protobuf.Type) {
      if ((resolvedType as { readonly group?: boolean }).group === true)
        throw unsupported(`${place}: groups are not supported`);
      return this.#readMessage(resolvedType);
    }
    return field.type as ScalarType;
  }

  #readEnum(type: protobuf.Enum): EnumType {
    const known = this.#enums.get(type);
    if (known !== undefined) return known;
    const numbers = new Map(Object.entries(type.values));
    const names = new Map([...numbers].reverse().map(([name, number]) => [number, name]));
    const read: EnumType = { kind: 'enum', name: toName(type), numbers, names };
    this.#enums.set(type, read);
    return read;
  }
}

/** The default of the file, or of the type where absence cannot be told from it. */
function readFallback(
  { options, required }: protobuf.Field,
  type: MessageField['type'],
  hasPresence: boolean,
): unknown {
  const declared: unknown = options?.['default'];
  if (required || (hasPresence && declared === undefined)) return undefined;
  if (typeof type !== 'string') {
    if (type.kind === 'message') return undefined;
    return declared === undefined ? (type.names.get(0) ?? [...type.numbers.keys()][0]) : declared;
  }
  if (type === 'bool') return declared === true || declared === 'true';
  if (type === 'string') return declared ?? '';
  if (type === 'bytes') return new TextEncoder().encode(String(declared ?? ''));
  if (!isArrayType(type)) return undefined;
  const isWide = ARRAY_CLASSES[type].BYTES_PER_ELEMENT === 8 && type !== 'double';
  return isWide ? BigInt(String(declared ?? 0)) : Number(declared ?? 0);
}

function isProto3Optional(oneof: protobuf.OneOf): boolean {
  return (oneof as { readonly isProto3Optional?: boolean }).isProto3Optional === true;
}

function toName({ fullName }: protobuf.ReflectionObject): string {
  return fullName.replace(/^\./, '');
}

function toCamelCase(name: string): string {
  return name.replaceAll(/_+([a-zA-Z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

function invalid(message: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', message);
}

function unsupported(message: string): CubeError {
  return new CubeError('UNSUPPORTED', message);
}
