#!/usr/bin/env node
/** The cube-builder command. */
import { run } from './cli.ts';

process.exitCode = await run();
