"""Our server with what the conformance suite asks for by name, at a free port that is printed on stderr.

`python checks/mcp_fixtures.py RUNS_DIR`
"""

import base64
import sys

from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.utilities.types import Audio
from mcp_types import EmbeddedResource, ImageContent, TextContent, TextResourceContents

from passagent.config import load_config
from passagent.view.mcp.pass_server import PassServer, build, serve_http
from passagent.view.mcp.served_tools import PassTools

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x44\xac\0\0\x88\x58\1\0\2\0\x10\0data\0\0\0\0"


def resource(uri: str, text: str) -> EmbeddedResource:
    """A text that stands in an answer."""
    contents = TextResourceContents(uri=uri, mime_type="text/plain", text=text)
    return EmbeddedResource(type="resource", resource=contents)


def add_tools(server: PassServer) -> None:
    """The suite's tools."""

    @server.tool(structured_output=False)
    def test_simple_text() -> str:
        """A text."""
        return "This is a simple text response for testing."

    @server.tool(structured_output=False)
    def test_image_content() -> Image:
        """An image."""
        return Image(data=PNG, format="png")

    @server.tool(structured_output=False)
    def test_audio_content() -> Audio:
        """A sound."""
        return Audio(data=WAV, format="wav")

    @server.tool(structured_output=False)
    def test_embedded_resource() -> EmbeddedResource:
        """A resource."""
        return resource("test://embedded-resource", "This is an embedded resource content.")

    @server.tool(structured_output=False)
    def test_multiple_content_types() -> list:
        """Text, image and resource."""
        image = ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
        text = TextContent(type="text", text="Multiple content types test:")
        return [text, image, resource("test://mixed-content-resource", '{"test":"data","value":123}')]

    @server.tool(structured_output=False)
    def test_error_handling() -> str:
        """An error."""
        raise ValueError("This tool intentionally returns an error for testing")

    @server.tool(structured_output=False)
    async def test_tool_with_progress(ctx: Context) -> str:
        """Progress."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
        return "done"


def add_resources(server: PassServer) -> None:
    """The suite's resources."""

    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image."""
        return PNG

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        """Data of an id."""
        return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'


def add_prompts(server: PassServer) -> None:
    """The suite's prompts."""

    @server.prompt()
    def test_simple_prompt() -> str:
        """A text."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """Two words."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list:
        """A resource."""
        content = resource(resourceUri, "Embedded resource content for testing.")
        return [UserMessage(content), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list:
        """An image."""
        image = ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
        return [UserMessage(image), UserMessage("Please analyze the image above.")]


if __name__ == "__main__":
    service = PassTools([], load_config(), sys.argv[1])
    server = build(service)
    add_tools(server)
    add_resources(server)
    add_prompts(server)
    serve_http(service, server, "127.0.0.1:0")
