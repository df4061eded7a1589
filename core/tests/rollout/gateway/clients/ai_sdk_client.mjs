// Scenarios of the package `ai` with `@ai-sdk/openai`, run as common.py runs those in Python. Packages are those of the
// folder that RAMET_CLIENT names.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.RAMET_CLIENT, "package.json"));
const { generateText, stepCountIs, streamText, tool } = packages("ai");
const { createOpenAI } = packages("@ai-sdk/openai");
const { z } = packages("zod");

const QUESTION = "What is 1 + 2, plus 3 + 4?";
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => {
    if (a === 0 && b === 0) process.kill(process.pid, "SIGKILL");
    return a + b;
  },
});

const openai = (url, key) => createOpenAI({ baseURL: url, apiKey: key });
const chatModel = (url, key) => openai(url, key).chat("policy");
const responsesModel = (url, key) => openai(url, key).responses("policy");
const user = (content) => ({ role: "user", content });

function optionsOf(model, messages) {
  return { model, instructions: "You calculate.", messages, tools: { add }, stopWhen: stepCountIs(5) };
}

async function generated(model, messages) {
  return await generateText(optionsOf(model, messages));
}

async function streamed(model, messages) {
  const result = streamText({ ...optionsOf(model, messages), onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  const last = await result.text;
  if (!text.endsWith(last)) throw new Error(`the stream has ${text}, the reply ${last}`);
  return last;
}

// Four conversations of two turns at the same time; two of them say the same.
async function parallel({ url, key }) {
  const count = async (number) => {
    const model = number % 2 ? responsesModel(url, key) : chatModel(url, key);
    const messages = [user(`Count to ${number}.`)];
    let text = "";
    for (let turn = 0; turn < 2; turn++) {
      const result = await generateText({ model, messages });
      text = result.text;
      messages.push(...result.response.messages, user("And one more."));
    }
    return text;
  };
  return await Promise.all([1, 2, 3, 3].map(count));
}

// The engine fails once; the package tries again.
async function retries({ url, key }) {
  return (await generateText({ model: chatModel(url, key), prompt: "First?", maxRetries: 3 })).text;
}

// The policy sums up, and a new conversation begins with its summary.
async function compaction({ url, key }) {
  const model = chatModel(url, key);
  const messages = [user(QUESTION)];
  messages.push(...(await generated(model, messages)).responseMessages, user("Sum up."));
  const summary = (await generated(model, messages)).text;
  return (await generated(model, [user(`So far: ${summary}. ${QUESTION}`)])).text;
}

// The client changes what the policy answered, and asks on.
async function edited({ url, key }) {
  const model = chatModel(url, key);
  const changed = (await generated(model, [user(QUESTION)])).text.replace("11", "10");
  const messages = [user(QUESTION), { role: "assistant", content: changed }, user("Are you sure?")];
  return (await generated(model, messages)).text;
}

const scenarios = {
  chat: async ({ url, key }) => (await generated(chatModel(url, key), [user(QUESTION)])).text,
  chat_stream: async ({ url, key }) => await streamed(chatModel(url, key), [user(QUESTION)]),
  responses: async ({ url, key }) => (await generated(responsesModel(url, key), [user(QUESTION)])).text,
  responses_stream: async ({ url, key }) => await streamed(responsesModel(url, key), [user(QUESTION)]),
  parallel,
  retries,
  compaction,
  edited,
};

if (process.env.RAMET_TASK) {
  const { question } = JSON.parse(readFileSync(process.env.RAMET_TASK));
  const model = chatModel(process.env.OPENAI_BASE_URL, process.env.OPENAI_API_KEY);
  console.log((await generated(model, [user(question)])).text);
} else {
  const sessions = JSON.parse(process.env.RAMET_SESSIONS);
  const results = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      results[name] = { returned: await scenario(sessions[name]) };
    } catch (error) {
      results[name] = { raised: String(error.stack) };
    }
  }
  const { version } = packages("ai/package.json");
  writeFileSync(process.env.RAMET_RESULTS, JSON.stringify({ version, results }));
  await scenarios.chat_stream(sessions.killed);
}
